from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class BeginEnrolmentRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class BeginEnrolmentResponse(_message.Message):
    __slots__ = ("nonce", "lifetime_seconds")
    NONCE_FIELD_NUMBER: _ClassVar[int]
    LIFETIME_SECONDS_FIELD_NUMBER: _ClassVar[int]
    nonce: bytes
    lifetime_seconds: float
    def __init__(self, nonce: _Optional[bytes] = ..., lifetime_seconds: _Optional[float] = ...) -> None: ...

class EnrolRequest(_message.Message):
    __slots__ = ("token", "nonce", "device_id", "csr", "signature")
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    DEVICE_ID_FIELD_NUMBER: _ClassVar[int]
    CSR_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    token: str
    nonce: bytes
    device_id: str
    csr: bytes
    signature: bytes
    def __init__(self, token: _Optional[str] = ..., nonce: _Optional[bytes] = ..., device_id: _Optional[str] = ..., csr: _Optional[bytes] = ..., signature: _Optional[bytes] = ...) -> None: ...

class EnrolResponse(_message.Message):
    __slots__ = ("device_id", "certificate")
    DEVICE_ID_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATE_FIELD_NUMBER: _ClassVar[int]
    device_id: str
    certificate: IssuedCertificate
    def __init__(self, device_id: _Optional[str] = ..., certificate: _Optional[_Union[IssuedCertificate, _Mapping]] = ...) -> None: ...

class RenewCertificateRequest(_message.Message):
    __slots__ = ("device_id", "csr")
    DEVICE_ID_FIELD_NUMBER: _ClassVar[int]
    CSR_FIELD_NUMBER: _ClassVar[int]
    device_id: str
    csr: bytes
    def __init__(self, device_id: _Optional[str] = ..., csr: _Optional[bytes] = ...) -> None: ...

class RenewCertificateResponse(_message.Message):
    __slots__ = ("certificate",)
    CERTIFICATE_FIELD_NUMBER: _ClassVar[int]
    certificate: IssuedCertificate
    def __init__(self, certificate: _Optional[_Union[IssuedCertificate, _Mapping]] = ...) -> None: ...

class IssuedCertificate(_message.Message):
    __slots__ = ("chain", "authority", "renew_after_seconds", "lifetime_seconds")
    CHAIN_FIELD_NUMBER: _ClassVar[int]
    AUTHORITY_FIELD_NUMBER: _ClassVar[int]
    RENEW_AFTER_SECONDS_FIELD_NUMBER: _ClassVar[int]
    LIFETIME_SECONDS_FIELD_NUMBER: _ClassVar[int]
    chain: bytes
    authority: bytes
    renew_after_seconds: float
    lifetime_seconds: float
    def __init__(self, chain: _Optional[bytes] = ..., authority: _Optional[bytes] = ..., renew_after_seconds: _Optional[float] = ..., lifetime_seconds: _Optional[float] = ...) -> None: ...
