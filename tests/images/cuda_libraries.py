"""Runs inside the GPU image: prints as JSON which CUDA libraries TensorFlow's libraries can find and load.

With a driver, TensorFlow opens each CUDA library by its bare name. Without a driver, dlinfo still reports the folders
that the loader would search for TensorFlow. This program searches them, and loads each library with its dependencies.
"""

import ctypes
import json
from pathlib import Path

import tensorflow as tf

FRAMEWORK, OPS = "libtensorflow_framework.so.2", "libtensorflow_cc.so.2"
OPENED_BY = {
    "libcublas.so.12": FRAMEWORK,
    "libcublasLt.so.12": FRAMEWORK,
    "libcudart.so.12": FRAMEWORK,
    "libcudnn.so.9": FRAMEWORK,
    "libcufft.so.11": FRAMEWORK,
    "libcupti.so.12": FRAMEWORK,
    "libcusparse.so.12": FRAMEWORK,
    "libnccl.so.2": FRAMEWORK,
    "libcusolver.so.11": OPS,
}
RTLD_DI_SERINFO, RTLD_DI_SERINFOSIZE = 4, 5


class SearchPath(ctypes.Structure):
    """Dl_serpath of <dlfcn.h>."""

    _fields_ = (("name", ctypes.c_char_p), ("flags", ctypes.c_uint))


class SearchInfo(ctypes.Structure):
    """Dl_serinfo of <dlfcn.h>, with room for the paths of any library in the image."""

    _fields_ = (("size", ctypes.c_size_t), ("count", ctypes.c_uint), ("paths", SearchPath * 4096))


def search_path(library: Path) -> list[Path]:
    """The folders in which the loader searches for what this library opens by name."""
    dlinfo = ctypes.CDLL(None).dlinfo
    dlinfo.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)
    handle, info = ctypes.CDLL(str(library))._handle, SearchInfo()
    for request in (RTLD_DI_SERINFOSIZE, RTLD_DI_SERINFO):
        if dlinfo(handle, request, ctypes.byref(info)) or info.size > ctypes.sizeof(info):
            raise OSError(f"dlinfo fails for {library}")
    return [Path(info.paths[index].name.decode()) for index in range(info.count)]


def main() -> None:
    """Print the path of each CUDA library that loads, and the devices that TensorFlow lists."""
    loaded = {}
    for name, by in OPENED_BY.items():
        places = (folder / name for folder in search_path(Path(tf.__file__).parent / by))
        found = next((place for place in places if place.exists()), None)
        if found:
            ctypes.CDLL(str(found))
        loaded[name] = found and str(found.resolve())
    devices = [device.name for device in tf.config.list_physical_devices("GPU")]
    print(json.dumps({"loaded": loaded, "devices": devices}))


if __name__ == "__main__":
    main()
