"""Experiments: one file each, with what it varies, measures, draws and claims."""

import importlib
import pkgutil

from hmmscope import claims

for _module in pkgutil.iter_modules(claims.__path__):  # claims that do not stand in the file of their experiment yet
    importlib.import_module(f"hmmscope.claims.{_module.name}")
