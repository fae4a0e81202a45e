"""Losses that are scaled or of low precision, on groups whose workers are threads."""

import unittest
import warnings

import group
import torch
from group import SAMPLES, run
from torch.nn.functional import mse_loss

import antdt


def setUpModule():
    torch.set_num_threads(1)
    # This process trains alone.
    antdt.init()


class Scaler:
    """What torch's GradScaler does with losses and gradients, which older versions of torch do on GPUs only."""

    def __init__(self, init_scale, growth_interval):
        self.scale_now, self.grown, self.interval, self.found = init_scale, 0, growth_interval, None

    def is_enabled(self):
        return True

    def get_scale(self):
        return self.scale_now

    def scale(self, loss):
        return loss * self.scale_now

    def unscale_(self, optimizer):
        gradients = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        assert gradients, "No inf checks were recorded for this optimizer."
        for gradient in gradients:
            gradient /= self.scale_now
        self.found = not all(bool(gradient.isfinite().all()) for gradient in gradients)

    def step(self, optimizer):
        if self.found is None:
            self.unscale_(optimizer)
        if not self.found:
            optimizer.step()

    def update(self):
        self.grown = 0 if self.found else self.grown + 1
        if self.found:
            self.scale_now /= 2
        elif self.grown == self.interval:
            self.scale_now, self.grown = 2 * self.scale_now, 0
        self.found = None

    def state_dict(self):
        return {"scale": self.scale_now, "grown": self.grown}

    def load_state_dict(self, state):
        self.scale_now, self.grown = state["scale"], state["grown"]


def scaler():
    """Torch's where it scales on CPUs, else the one of above."""
    if hasattr(torch, "amp") and hasattr(torch.amp, "GradScaler"):
        return torch.amp.GradScaler("cpu", init_scale=16.0, growth_interval=3)
    return Scaler(init_scale=16.0, growth_interval=3)


def rows():
    numbers = torch.Generator().manual_seed(3)
    return torch.rand(SAMPLES, 3, generator=numbers), 9 + torch.rand(SAMPLES, 1, generator=numbers)


def network(seed):
    with group.RANDOM:
        torch.manual_seed(seed)
        return torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Tanh(), torch.nn.Linear(5, 1))


class Scaled(unittest.TestCase):
    """Of losses that a GradScaler scales."""

    def train(self, loader, model, optimizer, scale, inputs, targets):
        for batch in loader:
            optimizer.zero_grad()
            loss = mse_loss(model(inputs[batch]), targets[batch])
            if 31 in batch:
                # Out of range, in the batch of one worker.
                loss = loss * float("inf")
            scale.scale(loss).backward()
            scale.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            scale.step(optimizer)
            scale.update()

    def made(self, seed):
        inputs, targets = rows()
        plain, scale = network(seed), scaler()
        return inputs, targets, plain, scale

    def script(self, rank):
        inputs, targets, plain, scale = self.made(rank)
        model = antdt.DDP(plain)
        optimizer = antdt.wrap(torch.optim.Adam(plain.parameters(), lr=0.05))
        antdt.carry(scale)
        self.train(antdt.BatchSampler(inputs), model, optimizer, scale, inputs, targets)
        return plain.state_dict(), scale.get_scale()

    def assert_as_one_process(self, members, found):
        inputs, targets, plain, scale = self.made(0)
        whole = [sum(batches, []) for batches in members.steps]
        self.train(whole, plain, torch.optim.Adam(plain.parameters(), lr=0.05), scale, inputs, targets)
        for rank, (state, _) in found.items():
            for name, expected in plain.state_dict().items():
                difference = (state[name] - expected).abs().max() / expected.abs().max()
                self.assertLess(float(difference), 1e-5, f"{name} of worker {rank}")
        return scale.get_scale()

    def test_workers_take_the_steps_and_leave_out_the_ones_that_one_process_does(self):
        members, found = run(self.script)
        expected = self.assert_as_one_process(members, found)
        self.assertEqual({scale for _, scale in found.values()}, {expected})

    def test_after_deaths_the_scales_of_workers_may_differ_and_the_sums_do_not(self):
        deaths = [(2, 1, "gradient"), (4, 0, "wait"), (5, 2, "loaded"), (6, 1, "step")]
        members, found = run(self.script, deaths=deaths)
        self.assertEqual((len(members.deaths), members.lives), (0, 7))
        self.assert_as_one_process(members, found)

    def test_a_scaler_that_is_not_carried_is_refused(self):
        def script(rank):
            inputs, targets, plain, scale = self.made(rank)
            model, optimizer = antdt.DDP(plain), antdt.wrap(torch.optim.SGD(plain.parameters(), lr=0.1))
            self.train(antdt.BatchSampler(inputs), model, optimizer, scale, inputs, targets)

        with self.assertRaisesRegex(antdt.UsageError, r"antdt\.carry\(scaler\)"):
            run(script)

    def test_two_scalers_are_refused(self):
        with self.assertRaisesRegex(antdt.UsageError, "two GradScalers"):
            run(lambda rank: antdt.carry(scaler(), scaler()))

    def test_the_scaler_of_torch_that_is_disabled_is_left_alone(self):
        def script(rank):
            inputs, targets, plain, _ = self.made(rank)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                scale = torch.cuda.amp.GradScaler(enabled=False)
            model, optimizer = antdt.DDP(plain), antdt.wrap(torch.optim.SGD(plain.parameters(), lr=0.01))
            for batch in antdt.BatchSampler(inputs):
                optimizer.zero_grad()
                scale.scale(mse_loss(model(inputs[batch]), targets[batch])).backward()
                scale.step(optimizer)
                scale.update()

        members, _ = run(script)
        self.assertEqual(sorted(members.applied), list(range(SAMPLES)))


class Autocast(unittest.TestCase):
    def test_gradients_of_bfloat16_are_weighted_by_samples(self):
        inputs, targets = rows()

        def gradients(plain, model, batch):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = mse_loss(model(inputs[batch]).float(), targets[batch])
            loss.backward()
            return [parameter.grad.clone() for parameter in plain.parameters()]

        def script(rank):
            plain = network(0)
            model, optimizer = antdt.DDP(plain), antdt.wrap(torch.optim.SGD(plain.parameters(), lr=0.0))
            found = []
            for batch in antdt.BatchSampler(inputs):
                optimizer.zero_grad()
                found.append(gradients(plain, model, batch))
                optimizer.step()
            return found

        members, found = run(script)
        for step, batches in enumerate(members.steps):
            total = sum(len(batch) for batch in batches)
            expected = None
            for batch in filter(None, batches):
                plain = network(0)
                shares = [len(batch) / total * gradient for gradient in gradients(plain, plain, batch)]
                expected = shares if expected is None else [a + b for a, b in zip(expected, shares)]
            for gradient, one in zip(found[1][step], expected):
                self.assertLess(float((gradient - one).abs().max() / one.abs().max()), 1e-6)


if __name__ == "__main__":
    unittest.main()
