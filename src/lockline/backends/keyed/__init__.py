"""What stores have in common where a claim is one key on a lease of theirs: etcd and Consul."""
