"""`antdt.IterableDataset`, in loaders of torch and in ours."""

import importlib.util
import sys
import unittest

import torch
from group import SAMPLES, run
from torch.utils.data import DataLoader

import antdt

HAS = {package: importlib.util.find_spec(package) is not None for package in ("datasets", "torchdata")}
for package in (package for package, is_there in HAS.items() if not is_there):
    print(f"SKIPPED: {package} is not installed", file=sys.stderr)


def setUpModule():
    # This process trains alone.
    antdt.init()


class Streams(unittest.TestCase):
    def loop(self, loader, stream):
        model, seen = antdt.DDP(torch.nn.Linear(1, 1)), []
        optimizer = antdt.wrap(torch.optim.SGD(model.parameters(), lr=0.0))
        for batch in loader:
            optimizer.zero_grad()
            model(batch.float().unsqueeze(1)).mean().backward()
            optimizer.step()
            seen.append([] if stream.is_borrowed else batch.tolist())
        return seen

    def read(self, numbers):
        return [torch.tensor(number + 100) for number in numbers]

    def assert_read(self, script):
        members, found = run(script)
        for rank, seen in found.items():
            self.assertEqual(seen, [[sample + 100 for sample in batches[rank]] for batches in members.steps])

    def test_a_function_is_asked_for_the_samples_of_each_batch(self):
        def script(rank):
            stream = antdt.IterableDataset(self.read, samples=SAMPLES)
            return self.loop(DataLoader(stream, batch_size=None), stream)

        self.assert_read(script)

    def test_a_data_set_that_has_indices_is_read_by_them(self):
        def script(rank):
            stream = antdt.IterableDataset(range(100, 100 + SAMPLES))
            return self.loop(stream, stream)

        self.assert_read(script)

    @unittest.skipUnless(HAS["torchdata"], "torchdata is not installed")
    def test_the_stateful_loader_takes_samplers_and_streams(self):
        from torchdata.stateful_dataloader import StatefulDataLoader

        def stream(rank):
            stream = antdt.IterableDataset(self.read, samples=SAMPLES)
            return self.loop(StatefulDataLoader(stream, batch_size=None), stream)

        def sampler(rank):
            sampler = antdt.BatchSampler(range(SAMPLES))
            return self.loop(StatefulDataLoader(range(100, 100 + SAMPLES), batch_sampler=sampler), sampler)

        for script in (stream, sampler):
            with self.subTest(script.__name__):
                self.assert_read(script)

    @unittest.skipUnless(HAS["datasets"], "datasets is not installed")
    def test_data_sets_of_huggingface_are_read_by_number_and_their_streams_are_refused(self):
        from datasets import Dataset

        rows = Dataset.from_dict({"number": list(range(100, 100 + SAMPLES))}).with_format("torch")

        def numbers(found):
            return torch.stack([row["number"] for row in found])

        def stream(rank):
            stream = antdt.IterableDataset(rows, collate_fn=numbers)
            return self.loop(stream, stream)

        def loader(rank):
            loader = antdt.DataLoader(rows, collate_fn=numbers)
            return self.loop(loader, loader)

        for script in (stream, loader):
            with self.subTest(script.__name__):
                self.assert_read(script)
        for wrong in (rows.to_iterable_dataset(), rows.to_iterable_dataset().with_format("torch")):
            for given in (antdt.IterableDataset, antdt.DataLoader):
                with self.subTest(given.__name__), self.assertRaisesRegex(antdt.UsageError, "by number"):
                    given(wrong)

    def test_alone_each_sample_is_in_one_batch_and_processes_read(self):
        for readers in (0, 2):
            loader = antdt.DataLoader(
                antdt.IterableDataset(self.read, samples=SAMPLES, batch_size=7), num_workers=readers
            )
            batches = [batch.tolist() for batch in loader]
            self.assertEqual([len(batch) for batch in batches], [7] * 8 + [4])
            self.assertEqual(sorted(sum(batches, [])), list(range(100, 100 + SAMPLES)))

    def test_what_could_not_be_exact_is_refused(self):
        class Stream(torch.utils.data.IterableDataset):
            def __iter__(self):
                return iter(range(9))

        for remedy, wrong in {
            "pass a function": lambda: antdt.IterableDataset(Stream()),
            "pass samples=N": lambda: antdt.IterableDataset(self.read),
            "leave samples out": lambda: antdt.IterableDataset(range(9), samples=8),
            "be an antdt.IterableDataset": lambda: antdt.DataLoader(Stream()),
            "has no len": lambda: antdt.DataLoader(iter(range(9))),
            "gave 1 samples for 2 numbers": lambda: list(antdt.IterableDataset(lambda n: n[:1], samples=2)),
        }.items():
            with self.subTest(remedy), self.assertRaisesRegex(antdt.UsageError, remedy):
                wrong()

    def test_processes_of_torch_s_loader_are_told_who_has_the_leases(self):
        loader = DataLoader(antdt.IterableDataset(self.read, samples=SAMPLES), batch_size=None, num_workers=1)
        with self.assertRaisesRegex(RuntimeError, r"antdt\.DataLoader\(stream, num_workers="):
            list(loader)

    def test_a_loader_that_makes_batches_of_batches_is_told_how_not_to(self):
        def script(rank):
            stream = antdt.IterableDataset(self.read, samples=SAMPLES)
            return self.loop(DataLoader(stream, batch_size=2), stream)

        with self.assertRaisesRegex(antdt.UsageError, "batch_size=None"):
            run(script)


if __name__ == "__main__":
    unittest.main()
