"""etcd: its own stories."""
