"""Stands in for a module of SGLang 0.5.23 that imports NVIDIA's CuTe DSL, which is not
installed: its kernel is optional, and the stand-in answers that it cannot be used."""
import enum
import importlib.abc
import importlib.machinery
import sys
import types

NAME = "sglang.kernels.ops.gemm.cutedsl_dual_gemm"


class Loader(importlib.abc.Loader):
    def create_module(self, spec):
        return types.ModuleType(spec.name)

    def exec_module(self, module):
        module.MAX_DUAL_GEMM_DECODE_TOKENS = 0
        module.DualGemmQuantMode = enum.Enum("DualGemmQuantMode", "UNQUANT FP8 W8A8_FP8")
        module.can_use_dual_gemm = lambda *args, **kwargs: False


class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        return importlib.machinery.ModuleSpec(name, Loader()) if name == NAME else None


sys.meta_path.insert(0, Finder())
