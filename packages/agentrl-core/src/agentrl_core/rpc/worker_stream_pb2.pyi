import datetime

from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class TaskIndex(_message.Message):
    __slots__ = ("int_value", "string_value")
    INT_VALUE_FIELD_NUMBER: _ClassVar[int]
    STRING_VALUE_FIELD_NUMBER: _ClassVar[int]
    int_value: int
    string_value: str
    def __init__(self, int_value: _Optional[int] = ..., string_value: _Optional[str] = ...) -> None: ...

class ReceiveHeartbeatRequest(_message.Message):
    __slots__ = ("id", "name", "concurrency", "indices", "native", "instance", "splits_json")
    ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    CONCURRENCY_FIELD_NUMBER: _ClassVar[int]
    INDICES_FIELD_NUMBER: _ClassVar[int]
    NATIVE_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    SPLITS_JSON_FIELD_NUMBER: _ClassVar[int]
    id: str
    name: str
    concurrency: int
    indices: _containers.RepeatedCompositeFieldContainer[TaskIndex]
    native: bool
    instance: str
    splits_json: str
    def __init__(self, id: _Optional[str] = ..., name: _Optional[str] = ..., concurrency: _Optional[int] = ..., indices: _Optional[_Iterable[_Union[TaskIndex, _Mapping]]] = ..., native: _Optional[bool] = ..., instance: _Optional[str] = ..., splits_json: _Optional[str] = ...) -> None: ...

class SessionCancelNotice(_message.Message):
    __slots__ = ("session_id",)
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    session_id: int
    def __init__(self, session_id: _Optional[int] = ...) -> None: ...

class WorkerStreamEnvelope(_message.Message):
    __slots__ = ("id", "type", "timestamp", "receive_heartbeat_request", "session_cancel_notice", "worker_response", "worker_request")
    class MessageType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        HEARTBEAT: _ClassVar[WorkerStreamEnvelope.MessageType]
        REQUEST: _ClassVar[WorkerStreamEnvelope.MessageType]
        RESPONSE: _ClassVar[WorkerStreamEnvelope.MessageType]
    HEARTBEAT: WorkerStreamEnvelope.MessageType
    REQUEST: WorkerStreamEnvelope.MessageType
    RESPONSE: WorkerStreamEnvelope.MessageType
    class WorkerRequest(_message.Message):
        __slots__ = ("method", "endpoint", "json", "deadline_ms", "request_id", "session_id")
        METHOD_FIELD_NUMBER: _ClassVar[int]
        ENDPOINT_FIELD_NUMBER: _ClassVar[int]
        JSON_FIELD_NUMBER: _ClassVar[int]
        DEADLINE_MS_FIELD_NUMBER: _ClassVar[int]
        REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
        SESSION_ID_FIELD_NUMBER: _ClassVar[int]
        method: str
        endpoint: str
        json: bytes
        deadline_ms: int
        request_id: str
        session_id: int
        def __init__(self, method: _Optional[str] = ..., endpoint: _Optional[str] = ..., json: _Optional[bytes] = ..., deadline_ms: _Optional[int] = ..., request_id: _Optional[str] = ..., session_id: _Optional[int] = ...) -> None: ...
    class WorkerResponse(_message.Message):
        __slots__ = ("code", "message", "json", "finish")
        CODE_FIELD_NUMBER: _ClassVar[int]
        MESSAGE_FIELD_NUMBER: _ClassVar[int]
        JSON_FIELD_NUMBER: _ClassVar[int]
        FINISH_FIELD_NUMBER: _ClassVar[int]
        code: int
        message: str
        json: bytes
        finish: bool
        def __init__(self, code: _Optional[int] = ..., message: _Optional[str] = ..., json: _Optional[bytes] = ..., finish: _Optional[bool] = ...) -> None: ...
    ID_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    RECEIVE_HEARTBEAT_REQUEST_FIELD_NUMBER: _ClassVar[int]
    SESSION_CANCEL_NOTICE_FIELD_NUMBER: _ClassVar[int]
    WORKER_RESPONSE_FIELD_NUMBER: _ClassVar[int]
    WORKER_REQUEST_FIELD_NUMBER: _ClassVar[int]
    id: str
    type: WorkerStreamEnvelope.MessageType
    timestamp: _timestamp_pb2.Timestamp
    receive_heartbeat_request: ReceiveHeartbeatRequest
    session_cancel_notice: SessionCancelNotice
    worker_response: WorkerStreamEnvelope.WorkerResponse
    worker_request: WorkerStreamEnvelope.WorkerRequest
    def __init__(self, id: _Optional[str] = ..., type: _Optional[_Union[WorkerStreamEnvelope.MessageType, str]] = ..., timestamp: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., receive_heartbeat_request: _Optional[_Union[ReceiveHeartbeatRequest, _Mapping]] = ..., session_cancel_notice: _Optional[_Union[SessionCancelNotice, _Mapping]] = ..., worker_response: _Optional[_Union[WorkerStreamEnvelope.WorkerResponse, _Mapping]] = ..., worker_request: _Optional[_Union[WorkerStreamEnvelope.WorkerRequest, _Mapping]] = ...) -> None: ...
