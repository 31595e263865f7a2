"""Runs inside the GPU image: prints, as JSON, what TensorFlow's own libraries find of CUDA and can load.

TensorFlow opens each CUDA library by its bare name, once there is a driver. Where there is none, the loader still says
where it would look for TensorFlow (dlinfo): the library is looked for there, and loaded with all that it needs itself.
"""

import ctypes
import json
from pathlib import Path

import tensorflow as tf

FRAMEWORK, REST = "libtensorflow_framework.so.2", "libtensorflow_cc.so.2"
LOOKED_FOR_BY = {
    "libcublas.so.12": FRAMEWORK,
    "libcublasLt.so.12": FRAMEWORK,
    "libcudart.so.12": FRAMEWORK,
    "libcudnn.so.9": FRAMEWORK,
    "libcufft.so.11": FRAMEWORK,
    "libcupti.so.12": FRAMEWORK,
    "libcusparse.so.12": FRAMEWORK,
    "libnccl.so.2": FRAMEWORK,
    "libcusolver.so.11": REST,
}
RTLD_DI_SERINFO, RTLD_DI_SERINFOSIZE = 4, 5


class SearchPath(ctypes.Structure):
    """Dl_serpath of <dlfcn.h>."""

    _fields_ = (("name", ctypes.c_char_p), ("flags", ctypes.c_uint))


class SearchInfo(ctypes.Structure):
    """Dl_serinfo of <dlfcn.h>, with room for as many paths as any library here has."""

    _fields_ = (("size", ctypes.c_size_t), ("count", ctypes.c_uint), ("paths", SearchPath * 4096))


def searched_for(library: Path) -> list[Path]:
    """The folders in which the loader looks for what this library opens by name."""
    dlinfo = ctypes.CDLL(None).dlinfo
    dlinfo.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)
    handle, info = ctypes.CDLL(str(library))._handle, SearchInfo()
    for request in (RTLD_DI_SERINFOSIZE, RTLD_DI_SERINFO):
        if dlinfo(handle, request, ctypes.byref(info)) or info.size > ctypes.sizeof(info):
            raise OSError(f"dlinfo refuses {library}")
    return [Path(info.paths[index].name.decode()) for index in range(info.count)]


def main() -> None:
    """Print the path of each CUDA library that is found and loads, and the devices that TensorFlow sees."""
    loaded = {}
    for name, by in LOOKED_FOR_BY.items():
        places = (folder / name for folder in searched_for(Path(tf.__file__).parent / by))
        found = next((place for place in places if place.exists()), None)
        if found:
            ctypes.CDLL(str(found))
        loaded[name] = found and str(found.resolve())
    devices = [device.name for device in tf.config.list_physical_devices("GPU")]
    print(json.dumps({"loaded": loaded, "devices": devices}))


if __name__ == "__main__":
    main()
