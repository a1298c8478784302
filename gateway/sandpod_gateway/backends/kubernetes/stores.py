"""Where all gateways over one namespace keep what they share, as the settings name it: Secrets, ConfigMaps, tenants."""

from collections.abc import Callable

from sandpod_api.types import Sandbox
from sandpod_gateway.backends.kubernetes.cluster import Cluster
from sandpod_gateway.backends.kubernetes.sandbox_secrets import SandboxSecrets
from sandpod_gateway.backends.kubernetes.secrets import (
    LINKS_ENTRY,
    SIGN_IN_ENTRY,
    KeySecret,
    SharedSecret,
    SignInSecrets,
)
from sandpod_gateway.backends.kubernetes.settings import KubernetesSettings
from sandpod_gateway.backends.kubernetes.tenants import SandboxTenants
from sandpod_gateway.backends.kubernetes.usage import ConfigMaps


class Stores:
    """A part of the Kubernetes backend; see `base.Backend` for each of them."""

    def __init__(
        self, settings: KubernetesSettings, cluster: Callable[[], Cluster], find: Callable[[str], Sandbox | None]
    ) -> None:
        self._settings = settings
        self._cluster = cluster
        self._find = find

    def link_store(self) -> SharedSecret | None:
        """Return the Secret of the settings; None when they name none."""
        secret = self._settings.link_secret
        return None if secret is None else SharedSecret(self._cluster, secret, LINKS_ENTRY)

    def sign_in_key_store(self) -> SharedSecret | None:
        """Return the Secret that links are signed with, which has an entry for the key of sign-ins too."""
        secret = self._settings.link_secret
        return None if secret is None else SharedSecret(self._cluster, secret, SIGN_IN_ENTRY)

    def sign_in_places(self) -> SignInSecrets | None:
        """Return the Secrets of the settings; None when they name none."""
        secrets = self._settings.sign_in_secrets
        return SignInSecrets(self._cluster, secrets) if secrets else None

    def key_source(self) -> KeySecret | None:
        """Return the Secret of the settings; None when they name none."""
        secret = self._settings.keys_secret
        return None if secret is None else KeySecret(self._cluster, secret, self._settings.watch_silence)

    def usage_store(self) -> ConfigMaps | None:
        """Return the ConfigMaps of the settings; None when they name none."""
        settings = self._settings
        if settings.usage is None:
            return None
        return ConfigMaps(self._cluster, settings.usage, settings.watch_silence, settings.usage_owner)

    def tenant_source(self) -> SandboxTenants | None:
        """Return where tenants are made on first use; None where none are."""
        namespace, silence = self._settings.first_use_namespace, self._settings.watch_silence
        return None if namespace is None else SandboxTenants(self._cluster, namespace, silence)

    def secret_source(self) -> SandboxSecrets:
        """Return the Secrets of the sandboxes' namespace."""
        return SandboxSecrets(self._cluster, self._find, enabled=self._settings.secrets)
