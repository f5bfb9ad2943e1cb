"""The dask cluster that runs are executed on: workers started here, or a scheduler that is there."""

import logging
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing import resource_tracker
from typing import Any

from dualavg_bench.store.files import StoreError

MOST_STARTS = 3  # attempts to start the local workers


@contextmanager
def cluster(workers: int | None, address: str | None) -> Iterator[Any]:
    """Connect to the scheduler at `address`, or start workers here, one a core unless said."""
    import dask
    from distributed import Client
    from distributed.utils import silence_logging_cmgr

    settings = {
        # A worker is given the run it executes and no other, which another could have begun meanwhile.
        "distributed.scheduler.worker-saturation": 1.0,
        "distributed.worker.memory.terminate": False,
        "distributed.worker.memory.pause": False,
        "distributed.worker.memory.spill": False,
        "distributed.worker.memory.target": False,
        "distributed.worker.daemon": True,
        # Dask's own lets workers give every freed page back at once, which takes a step half as long again.
        "distributed.nanny.pre-spawn-environ": {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"},
        "distributed.worker.profile.enabled": False,
        "distributed.admin.tick.limit": "1h",
    }
    with dask.config.set(settings), silence_logging_cmgr(logging.CRITICAL):  # what matters, we say ourselves
        if address is not None:
            try:
                client = Client(address, timeout="10s")
            except (OSError, TimeoutError) as error:
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
    """Start workers here; if one dies before it is there, all of them again."""
    from distributed import LocalCluster

    try:
        return LocalCluster(
            n_workers=workers,
            threads_per_worker=1,
            processes=True,
            dashboard_address=None,
            # Its web server begins all the same: on any port, so that a second study has its own.
            scheduler_kwargs={"dashboard_address": "127.0.0.1:0"},
            host="127.0.0.1",
            silence_logs=logging.CRITICAL,  # in the workers
        )
    except (RuntimeError, OSError) as error:  # OSError: TimeoutError too
        if attempts > 1:
            return _local_cluster(workers, attempts - 1)
        raise StoreError(
            f"Workers could not be started in {MOST_STARTS} attempts ({error}): start again; if memory is "
            f"short, with fewer: --workers {max(1, workers // 2)}."
        ) from error


def _close(what: Any) -> None:
    """Close a client or a cluster, whatever somebody presses who cannot wait for it."""
    with _defer_sigint():
        what.close()


@contextmanager
def _defer_sigint() -> Iterator[None]:
    """Put Ctrl-C off to the end of the block; threads and processes that begin in it never hear of it.

    A terminal sends it to workers too, and each would say farewell in forty lines; to stop them is ours.
    """
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "pthread_sigmask"):
        yield
        return
    pressed: list[int] = []
    resource_tracker.ensure_running()  # now: it would undo the mask in the thread that begins it
    handler = signal.signal(signal.SIGINT, lambda number, _frame: pressed.append(number))
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        signal.signal(signal.SIGINT, handler)
    if pressed:
        raise KeyboardInterrupt
