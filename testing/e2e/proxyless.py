"""A proxyless gRPC client: resolves and calls a service through xDS, under mesh TLS.

Usage: proxyless.py TARGET CALLS

Reads its bootstrap from GRPC_XDS_BOOTSTRAP. Calls FakeService/Handle, and prints for each call the answer's JSON, or the
name of the status, on a line of its own; a status other than OK is the last.
"""

import json
import sys

import grpc
import grpc.experimental

CALL_TIME_MAX_S = 10


def varint(data: bytes, at: int) -> tuple[int, int]:
    number, shift = 0, 0
    while True:
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return number, at


def message_of(response: bytes) -> str:
    """Field 1, a string, of `Response`."""
    at = 0
    while at < len(response):
        tag, at = varint(response, at)
        number, wire_type = tag >> 3, tag & 7
        value, at = varint(response, at)
        if wire_type == 2:
            if number == 1:
                return response[at : at + value].decode()
            at += value
    raise ValueError(f"no message in {response!r}")


def main() -> None:
    target, calls = sys.argv[1], int(sys.argv[2])
    # What is used where the control plane says nothing of TLS: nothing that a sidecar would accept.
    credentials = grpc.xds_channel_credentials(grpc.experimental.insecure_channel_credentials())
    with grpc.secure_channel(target, credentials) as channel:
        handle = channel.unary_unary("/FakeService/Handle", lambda request: request, message_of)
        for _ in range(calls):
            try:
                answer = handle(b"", timeout=CALL_TIME_MAX_S, wait_for_ready=True)
                print(json.dumps(json.loads(answer)), flush=True)
            except grpc.RpcError as error:
                print(error.code().name, flush=True)
                print(error.details(), file=sys.stderr, flush=True)
                break


main()
