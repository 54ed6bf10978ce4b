"""How the commands prove who they are: with a certificate or with a token."""

from __future__ import annotations

from pathlib import Path
from typing import Self

from pydantic import Field, SecretStr, model_validator

from hfmds.errors import ConfigurationError
from hfmds.service.process.settings import ServiceSettings
from hfmds.service.security.tls import Bearer, TlsFiles, Trust


class CommandSettings(ServiceSettings):
    """Settings of the commands, from the environment."""

    token: SecretStr | None = Field(
        None, description="Token of an admin, for the coordinator's token port."
    )
    token_file: Path | None = Field(None, description="File that holds the token.")

    @model_validator(mode="after")
    def _require_one_identity(self) -> Self:
        if self.token and self.token_file:
            raise ValueError("set HFMDS_TOKEN or HFMDS_TOKEN_FILE, not both")
        if self.enrols and (not self.tls_authority or self.tls_certificate or self.tls_key):
            raise ValueError(
                "with HFMDS_TOKEN or HFMDS_TOKEN_FILE, set HFMDS_TLS_AUTHORITY, and neither "
                "HFMDS_TLS_CERTIFICATE nor HFMDS_TLS_KEY: a token takes their place"
            )
        return self

    @property
    def enrols(self) -> bool:
        """Whether a token takes the place of a certificate."""
        return bool(self.token or self.token_file)

    @property
    def credentials(self) -> TlsFiles | Bearer | None:
        """The proof of identity for the coordinator; None without TLS."""
        if self.enrols and self.tls_authority:
            return Bearer(Trust(self.tls_authority), self._token())
        return self.tls

    def _token(self) -> str:
        if self.token:
            return self.token.get_secret_value().strip()
        try:
            return self.token_file.read_text().strip() if self.token_file else ""
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigurationError(
                f"cannot read the token in {self.token_file}: {error}; set HFMDS_TOKEN_FILE"
            ) from None
