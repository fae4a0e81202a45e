"""Properties of the package, on groups whose workers are threads: gradients on random splits, and counts under deaths and resumes."""

import collections
import functools
import importlib.util
import sys
import unittest

import group
import numpy as np
import torch
from torch.nn.functional import mse_loss

import antdt

HAS_HYPOTHESIS = importlib.util.find_spec("hypothesis") is not None
if HAS_HYPOTHESIS:
    from hypothesis import given, settings
    from hypothesis import strategies as st

    #: The same cases in each run: a failure is one of the change that it comes with.
    BOUNDED = settings(max_examples=40, deadline=None, derandomize=True, database=None)
else:
    print("SKIPPED: hypothesis is not installed", file=sys.stderr)


def setUpModule():
    torch.set_num_threads(1)
    # This process trains alone.
    antdt.init()


def sizes(workers):
    """Of the batches of each worker in each step, which repeat."""
    row = st.lists(st.integers(0, 5), min_size=workers, max_size=workers)
    return st.lists(row, min_size=1, max_size=4).map(lambda rows: lambda step, rank: rows[step % len(rows)][rank])


def deaths(workers):
    calls = st.sampled_from(["wait", "loaded", "gradient", "step", "stepped", "gave"])
    return st.lists(st.tuples(st.integers(0, 3), st.integers(0, workers - 1), calls), min_size=1, max_size=6)


class Network(torch.nn.Module):
    """Has parameters that are frozen, such as no gradient reaches, and such as some samples reach."""

    def __init__(self, seed):
        super().__init__()
        with group.RANDOM:
            torch.manual_seed(seed)
            self.hidden, self.out = torch.nn.Linear(3, 5), torch.nn.Linear(4, 1)
            self.frozen, self.rare, self.unused = torch.nn.Linear(5, 4), torch.nn.Linear(3, 1), torch.nn.Linear(2, 2)
        self.frozen.requires_grad_(False)

    def forward(self, x):
        found = self.out(self.frozen(torch.tanh(self.hidden(x))))
        rare = x[:, 0] > 0.8
        if not bool(rare.any()):
            return found
        return found + torch.zeros_like(found).index_put((rare.nonzero()[:, 0],), self.rare(x[rare]))


def rows(samples):
    """Rows whose errors are all of one sign: what is left of a sum that cancels out has no relative precision."""
    numbers = torch.Generator().manual_seed(samples)
    return torch.rand(samples, 3, generator=numbers), 9 + torch.rand(samples, 1, generator=numbers)


def total(accumulate=1):
    """Samples of the newest step of the optimizer."""
    steps = group.HERE.session.group.steps
    return sum(len(batch) for step in steps[(len(steps) - 1) // accumulate * accumulate :] for batch in step)


class Counting(torch.nn.Module):
    """A weight for each sample: the gradient of a step says which samples were in it."""

    def __init__(self, samples):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(samples))
        self.register_buffer("counts", torch.zeros(samples, dtype=torch.int64))

    def forward(self, samples):
        return self.weight[samples].mean()


class Counter(torch.optim.SGD):
    """Counts what is in its steps."""

    def __init__(self, model, accumulate):
        super().__init__(model.parameters(), lr=0.0)
        self.model, self.accumulate = model, accumulate

    def step(self):
        self.model.counts += torch.round(self.model.weight.grad * total(self.accumulate)).to(torch.int64)


def counted_by_torch(samples, epochs, accumulate=1):
    def script(rank):
        sampler = antdt.BatchSampler(range(samples))
        model = antdt.DDP(Counting(samples))
        optimizer = antdt.wrap(Counter(model.module, accumulate), accumulate)
        for epoch in range(epochs):
            for batch in sampler:
                assert min([begun for begun, _ in group.HERE.session.leased], default=0) <= epoch
                optimizer.zero_grad()
                model(torch.tensor(batch)).backward()
                optimizer.step()
        return model.module.counts.tolist()

    return script


def counted_by_numpy(samples, epochs):
    def script(rank):
        counts = np.zeros(samples, dtype=np.int64)
        client = antdt.ShardClient(samples, gradient=samples, state={"counts": counts})
        for _ in range(epochs):
            for batch in client:
                marks = np.zeros(samples, dtype=np.float32)
                np.add.at(marks, batch, 1 / len(batch))
                mean = client.combine(marks)
                if mean is not None:
                    counts += np.rint(mean * total()).astype(np.int64)
        return counts.tolist()

    return script


@unittest.skipUnless(HAS_HYPOTHESIS, "hypothesis is not installed")
class Properties(unittest.TestCase):
    def test_the_gradient_of_any_split_is_that_of_one_process_with_the_whole_batch(self):
        @BOUNDED
        @given(data=st.data(), workers=st.integers(1, 4), samples=st.integers(1, 60), parts=st.integers(1, 3))
        def holds(data, workers, samples, parts):
            inputs, targets = rows(samples)
            members = group.Group(workers, samples, 1, data.draw(sizes(workers)))

            def script(rank):
                sampler = antdt.BatchSampler(range(samples))
                # Another model in each: all go on with that of the first.
                plain = Network(rank)
                model = antdt.DDP(plain)
                optimizer = antdt.wrap(torch.optim.SGD(plain.parameters(), lr=0.01, weight_decay=0.1))
                found = []
                for batch in sampler:
                    optimizer.zero_grad(set_to_none=True)
                    *first, last = torch.tensor(batch).tensor_split(min(parts, len(batch)))
                    with model.no_sync():
                        for part in first:
                            (mse_loss(model(inputs[part]), targets[part]) * len(part) / len(batch)).backward()
                    (mse_loss(model(inputs[last]), targets[last]) * len(last) / len(batch)).backward()
                    state = {name: value.clone() for name, value in plain.state_dict().items()}
                    grads = {name: None if p.grad is None else p.grad.clone() for name, p in plain.named_parameters()}
                    found.append((state, grads))
                    optimizer.step()
                return found

            ranks = members.run(script)
            self.assertEqual({len(found) for found in ranks.values()}, {len(members.steps)})
            for step, batches in enumerate(members.steps):
                whole, reference = sum(batches, []), Network(0)
                reference.load_state_dict(ranks[0][step][0])
                mse_loss(reference(inputs[whole]), targets[whole]).backward()
                for rank, found in ranks.items():
                    self.assert_close(reference, found[step][1], f"step {step} of worker {rank}: {batches}")

        holds()

    def assert_close(self, reference, found, where):
        for name, parameter in reference.named_parameters():
            if parameter.grad is None:
                self.assertIsNone(found[name], f"{name} in {where}")
                continue
            difference = (found[name] - parameter.grad).abs().max() / parameter.grad.abs().max()
            self.assertLess(float(difference), 1e-6, f"{name} in {where}")

    def test_each_sample_is_once_in_the_model_whoever_dies(self):
        for counted in (counted_by_torch, counted_by_numpy):
            with self.subTest(counted.__name__):
                self.assert_counted(counted)

    def assert_counted(self, counted):
        @BOUNDED
        @given(data=st.data(), workers=st.integers(2, 4), samples=st.integers(9, 40), epochs=st.integers(1, 2))
        def holds(data, workers, samples, epochs):
            members = group.Group(workers, samples, epochs, data.draw(sizes(workers)), data.draw(deaths(workers)))
            found = members.run(counted(samples, epochs))
            self.assertEqual(sorted(found), list(range(workers)))
            for rank, counts in found.items():
                self.assertEqual(counts, [epochs] * samples, f"worker {rank}")

        holds()

    def test_each_sample_is_once_in_steps_of_several_batches_whoever_dies(self):
        for accumulate in (2, 5):
            with self.subTest(accumulate):
                self.assert_counted(functools.partial(counted_by_torch, accumulate=accumulate))

    def test_what_is_read_ahead_never_decides_what_is_in_a_batch(self):
        from antdt.loader import _Requests

        @BOUNDED
        @given(data=st.data(), ahead=st.integers(1, 6))
        def holds(data, ahead):
            batches = data.draw(st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=3), max_size=20))
            requests, reading = _Requests(range(9)), collections.deque()
            asked = iter(requests)
            for at, batch in enumerate(batches):
                # What follows may be as foreseen, or not.
                upcoming = data.draw(st.sampled_from([sum(batches[at + 1 : at + 4], []), [], [7, 7, 7]]))
                requests.expect(batch, upcoming)
                for _ in range(ahead + 2):
                    reading.extend(next(asked) for _ in range(ahead + 1 - len(reading)))
                    delivered = reading.popleft()
                    self.assertEqual(requests.read(), delivered)
                    if delivered == batch:
                        break
                else:
                    self.fail(f"{batch} was not read")

        holds()

    def test_each_sample_is_once_in_the_model_that_other_workers_resume(self):
        for counted in (counted_by_torch, counted_by_numpy):
            with self.subTest(counted.__name__):
                self.assert_resumed(counted)

    def assert_resumed(self, counted):
        @BOUNDED
        @given(
            data=st.data(),
            before=st.integers(1, 3),
            after=st.integers(1, 4),
            samples=st.integers(9, 40),
            step=st.integers(0, 6),
        )
        def holds(data, before, after, samples, step):
            killed = data.draw(deaths(before)) if before > 1 else []
            first = group.Group(before, samples, 2, data.draw(sizes(before)), killed, checkpoint=step)
            found = first.run(counted(samples, 2))
            if first.kept is not None:
                second = group.Group(after, samples, 2, data.draw(sizes(after)), resumed=first.kept)
                found = second.run(counted(samples, 2))
                self.assertEqual(len(found), after)
            for rank, counts in found.items():
                self.assertEqual(counts, [2] * samples, f"worker {rank}")

        holds()


if __name__ == "__main__":
    unittest.main()
