"""`gca broker`: the embedded broker on its own, or the configuration of a real one."""

import asyncio
from asyncio import Future
from pathlib import Path
from typing import Annotated

import typer


def broker(
    host: Annotated[str, typer.Option(help="address to listen on; 0.0.0.0 for all")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="port to listen on", min=1, max=65535)] = 1883,
    tls_cert: Annotated[Path | None, typer.Option(help="PEM file of the broker's certificate")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="PEM file of its key")] = None,
    print_mosquitto_conf: Annotated[bool, typer.Option(help="print a configuration for mosquitto and exit")] = False,
    print_acl: Annotated[bool, typer.Option(help="print access rules for mosquitto and exit")] = False,
) -> None:
    """Run the embedded MQTT broker, or print what mosquitto needs to serve as one.

    Example: gca broker --host 0.0.0.0

    Example: gca broker --print-mosquitto-conf > gca.conf && mosquitto -c gca.conf
    """
    from broker_server.broker.mosquitto import acl_patterns, mosquitto_conf

    if print_mosquitto_conf:
        print(mosquitto_conf(port, host=host), end="")
    elif print_acl:
        print(acl_patterns(), end="")
    else:
        asyncio.run(_serve(host, port, tls_cert, tls_key))


async def _serve(host: str, port: int, tls_cert: Path | None, tls_key: Path | None) -> None:
    import ssl

    from broker_server.broker.tcp import serve
    from edge_client.errors import ConfigError, EnvironmentFault

    context = None
    if (tls_cert is None) != (tls_key is None):
        raise ConfigError("give --tls-cert and --tls-key together")
    if tls_cert is not None and tls_key is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            context.load_cert_chain(tls_cert, tls_key)
        except (OSError, ssl.SSLError) as error:
            raise EnvironmentFault(f"{tls_cert}, {tls_key}: {error}; give readable PEM files that match") from None
    ready: Future[int] = asyncio.get_running_loop().create_future()
    ready.add_done_callback(lambda done: _announce(host, done, context is not None))
    await serve(host, port, ssl=context, ready=ready)


def _announce(host: str, ready: Future[int], tls: bool) -> None:
    port = ready.result()
    print(f"listening on {'mqtts' if tls else 'mqtt'}://{host}:{port}; Ctrl-C ends it", flush=True)
