"""The dask cluster that executes runs: local workers, or those of a running scheduler."""

import asyncio
import logging
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing import resource_tracker
from typing import Any

from dualavg_bench.store.files import StoreError

TIMEOUTS = (TimeoutError, asyncio.TimeoutError)  # two classes in Python 3.10
MOST_STARTS = 3  # attempts to start the local workers


@contextmanager
def cluster(workers: int | None, address: str | None) -> Iterator[Any]:
    """Connect to the scheduler at `address`, or start local workers; default: one per core."""
    import dask
    from distributed import Client
    from distributed.utils import silence_logging_cmgr

    settings = {
        # No queue on a worker: another worker could start those runs earlier.
        "distributed.scheduler.worker-saturation": 1.0,
        "distributed.worker.memory.terminate": False,
        "distributed.worker.memory.pause": False,
        "distributed.worker.memory.spill": False,
        "distributed.worker.memory.target": False,
        "distributed.worker.daemon": True,
        # Replaces dask's setting, by which malloc returns freed pages at once: steps took 50% longer.
        "distributed.nanny.pre-spawn-environ": {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"},
        "distributed.worker.profile.enabled": False,
        "distributed.admin.tick.limit": "1h",
    }
    with dask.config.set(settings), silence_logging_cmgr(logging.CRITICAL):  # we print what matters
        if address is not None:
            try:
                client = Client(address, timeout="10s")
            except (OSError, *TIMEOUTS) as error:
                raise StoreError(f"No dask scheduler answers at {address} ({error}).") from error
            try:
                yield client
            finally:
                _close(client)
            return
        os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
        with ExitStack() as stack:
            with _defer_sigint():
                local = _local_cluster(workers or os.cpu_count() or 1)
                stack.callback(_close, local)
            client = Client(local)
            stack.callback(_close, client)
            yield client


def _local_cluster(workers: int, attempts: int = MOST_STARTS) -> Any:
    """Start local workers; if one dies at the start, start all of them again."""
    from distributed import LocalCluster

    try:
        return LocalCluster(
            n_workers=workers,
            threads_per_worker=1,
            processes=True,
            dashboard_address=None,
            # The web server starts all the same: on any free port, for several studies at once.
            scheduler_kwargs={"dashboard_address": "127.0.0.1:0"},
            host="127.0.0.1",
            silence_logs=logging.CRITICAL,  # in the workers
        )
    except (RuntimeError, OSError, *TIMEOUTS) as error:
        if attempts > 1:
            return _local_cluster(workers, attempts - 1)
        raise StoreError(
            f"Workers could not be started in {MOST_STARTS} attempts ({error}): run the command again; if "
            f"memory is short, with fewer: --workers {max(1, workers // 2)}."
        ) from error


def _close(client_or_cluster: Any) -> None:
    """Close a client or a cluster, even if the user presses Ctrl-C again.

    Workers that do not answer in time end with this process.
    """
    with _defer_sigint(), suppress(*TIMEOUTS):
        client_or_cluster.close()


@contextmanager
def _defer_sigint() -> Iterator[None]:
    """Defer Ctrl-C to the end of the block. Threads and processes started in it ignore Ctrl-C.

    A terminal sends it to workers too. They would each print a traceback; the parent stops them.
    """
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "pthread_sigmask"):
        yield
        return
    pressed: list[int] = []
    resource_tracker.ensure_running()  # now: starting it later would undo the mask
    handler = signal.signal(signal.SIGINT, lambda number, _frame: pressed.append(number))
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        signal.signal(signal.SIGINT, handler)
    if pressed:
        raise KeyboardInterrupt
