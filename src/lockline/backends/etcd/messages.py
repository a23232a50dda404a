"""The messages of etcd's v3 API that Lockline uses, made by protobuf from the table below when this is imported.

The field numbers are etcd's published interface and never change. Making the classes here, and not with a compiler at build
time, means: no generated code in the tree, no tie between a generator's and the installed protobuf's version.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

# message: fields, each `name type number`; `*` marks a repeated field, `|` one of a choice (protobuf's oneof).
SCHEMA: Final = """
KeyValue: key bytes 1, create_revision int64 2, mod_revision int64 3, version int64 4, value bytes 5, lease int64 6
Event: type int32 1, kv KeyValue 2, prev_kv KeyValue 3
ResponseHeader: cluster_id uint64 1, member_id uint64 2, revision int64 3, raft_term uint64 4
RangeRequest: key bytes 1, range_end bytes 2, limit int64 3, revision int64 4, sort_order int32 5, sort_target int32 6, serializable bool 7, keys_only bool 8, count_only bool 9, max_create_revision int64 13
RangeResponse: header ResponseHeader 1, kvs *KeyValue 2, more bool 3, count int64 4
PutRequest: key bytes 1, value bytes 2, lease int64 3, prev_kv bool 4, ignore_value bool 5, ignore_lease bool 6
PutResponse: header ResponseHeader 1, prev_kv KeyValue 2
DeleteRangeRequest: key bytes 1, range_end bytes 2, prev_kv bool 3
DeleteRangeResponse: header ResponseHeader 1, deleted int64 2, prev_kvs *KeyValue 3
RequestOp: request_range |RangeRequest 1, request_put |PutRequest 2, request_delete_range |DeleteRangeRequest 3, request_txn |TxnRequest 4
ResponseOp: response_range |RangeResponse 1, response_put |PutResponse 2, response_delete_range |DeleteRangeResponse 3, response_txn |TxnResponse 4
Compare: result int32 1, target int32 2, key bytes 3, version |int64 4, create_revision |int64 5, mod_revision |int64 6, value |bytes 7, lease |int64 8, range_end bytes 64
TxnRequest: compare *Compare 1, success *RequestOp 2, failure *RequestOp 3
TxnResponse: header ResponseHeader 1, succeeded bool 2, responses *ResponseOp 3
WatchRequest: create_request |WatchCreateRequest 1, cancel_request |WatchCancelRequest 2
WatchCreateRequest: key bytes 1, range_end bytes 2, start_revision int64 3, progress_notify bool 4, filters *int32 5, prev_kv bool 6, watch_id int64 7
WatchCancelRequest: watch_id int64 1
WatchResponse: header ResponseHeader 1, watch_id int64 2, created bool 3, canceled bool 4, compact_revision int64 5, cancel_reason string 6, events *Event 11
LeaseGrantRequest: TTL int64 1, ID int64 2
LeaseGrantResponse: header ResponseHeader 1, ID int64 2, TTL int64 3, error string 4
LeaseRevokeRequest: ID int64 1
LeaseRevokeResponse: header ResponseHeader 1
LeaseKeepAliveRequest: ID int64 1
LeaseKeepAliveResponse: header ResponseHeader 1, ID int64 2, TTL int64 3
LeaseTimeToLiveRequest: ID int64 1, keys bool 2
LeaseTimeToLiveResponse: header ResponseHeader 1, ID int64 2, TTL int64 3, grantedTTL int64 4, keys *bytes 5
AuthenticateRequest: name string 1, password string 2
AuthenticateResponse: header ResponseHeader 1, token string 2
StatusRequest:
StatusResponse: header ResponseHeader 1, version string 2, dbSize int64 3, leader uint64 4, raftIndex uint64 5, raftTerm uint64 6, raftAppliedIndex uint64 7, errors *string 8, dbSizeInUse int64 9, isLearner bool 10
Member: ID uint64 1, name string 2, peerURLs *string 3, clientURLs *string 4, isLearner bool 5
MemberListRequest:
MemberListResponse: header ResponseHeader 1, members *Member 2
AlarmRequest: action int32 1, memberID uint64 2, alarm int32 3
AlarmMember: memberID uint64 1, alarm int32 2
AlarmResponse: header ResponseHeader 1, alarms *AlarmMember 2
"""
# Enumerations are numbers on the wire; these are the ones Lockline needs.
EQUAL, LESS = 0, 2
CREATE, MOD = 1, 2
DELETE = 1
NO_PUT = 0
ASCEND, DESCEND, BY_CREATE = 1, 2, 2


def _make() -> dict[str, Any]:
    field = descriptor_pb2.FieldDescriptorProto
    scalars = {
        "bytes": field.TYPE_BYTES, "string": field.TYPE_STRING, "bool": field.TYPE_BOOL,
        "int32": field.TYPE_INT32, "int64": field.TYPE_INT64, "uint64": field.TYPE_UINT64,
    }  # fmt: skip
    file = descriptor_pb2.FileDescriptorProto(name="lockline_etcd.proto", package="lockline_etcd", syntax="proto3")
    for row in SCHEMA.strip().splitlines():
        name, _, fields = row.partition(":")
        message = file.message_type.add(name=name)
        for entry in filter(None, map(str.strip, fields.split(","))):
            label, kind, number = entry.split()
            made = message.field.add(name=label, number=int(number), label=field.LABEL_OPTIONAL)
            if kind[0] == "*":
                made.label = field.LABEL_REPEATED
            elif kind[0] == "|":
                if not message.oneof_decl:
                    message.oneof_decl.add(name="choice")
                made.oneof_index = 0
            kind = kind.lstrip("*|")
            if kind in scalars:
                made.type = scalars[kind]
            else:
                made.type, made.type_name = field.TYPE_MESSAGE, f".lockline_etcd.{kind}"
    # A pool of its own: the user's process may have loaded etcd's own definitions into the common one.
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    names = [message.name for message in file.message_type]
    return {n: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"lockline_etcd.{n}")) for n in names}


# Each under its own name, so that whoever needs one finds it at once: a request is made of several.
globals().update(_make())

if TYPE_CHECKING:

    def __getattr__(name: str) -> Any: ...
