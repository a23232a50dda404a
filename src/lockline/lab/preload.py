"""What the locks of the laboratory import, where it is installed."""

from __future__ import annotations

from contextlib import suppress
from importlib import import_module

for _name in ("redis", "kazoo.client", "psycopg", "pymysql", "h2.connection", "httpx", "httpcore"):
    with suppress(ImportError):
        import_module(_name)
for _name in ("setnx", "set_nx_ex", "getset", "owner", "reentrant", "redlock", "zookeeper", "database", "ours"):
    with suppress(ImportError):
        import_module(f"lockline.lab.locks.{_name}")
for _name in ("redis", "redlock", "zookeeper", "etcd", "consul", "postgresql", "mysql", "local"):
    with suppress(ImportError):
        import_module(f"lockline.backends.{_name}.backend")
for _name in ("redlock.cluster", "redlock.target", "postgresql.schema", "mysql"):
    with suppress(ImportError):
        import_module(f"lockline.backends.{_name}")
for _name in ("redis", "zookeeper", "etcd", "consul", "postgres", "pgbouncer", "mysql"):
    import_module(f"lockline.lab.servers.{_name}")
