"""torchrun. That of PyTorch 1.13 reads nothing from its flags under Python 3.11, where `Std.from_str` returns None."""

from torch.distributed.elastic.multiprocessing.api import Std

if Std.from_str("0") is None:
    Std.from_str = classmethod(lambda kind, _: kind.NONE)

from torch.distributed.run import main  # noqa: E402

main()
