"""The environment of processes that play roles. Libraries read it while they are loaded, so nothing here loads any."""

import os

NO_HEAP_OF_OTHERS = {
    "JE_ARROW_MALLOC_CONF": "background_thread:false"
}  # pyarrow would begin a thread, which glibc gives a heap (htrain.executor.host.memory)


def role_environment(num_threads: int) -> dict[str, str]:
    """This process's environment, with what the libraries of a role are to read. `num_threads` are those of a matmul."""
    threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(num_threads))
    return {**os.environ, **threads, "OPENBLAS_NUM_THREADS": "1", **NO_HEAP_OF_OTHERS}
