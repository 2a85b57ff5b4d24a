"""The door for calls over gRPC: finds the routes of calls for gRPC, and passes the calls to the router."""

import functools
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeAlias, cast

from fedstack.service.host.calls.call_router import CallRouter, Handle, Refusal
from fedstack.service.host.calls.incoming_call import IncomingCall, Route
from fedstack.service.host.doors.grpc_call import Context, GrpcCall, Metadata, abort
from fedstack.service.host.doors.whole_calls import WholeCalls
from fedstack.transport.grpc.credential_files import bearer_token
from fedstack.transport.grpc.grpc_module import grpc
from fedstack.transport.peers.methods import ExchangeMethod, Service
from fedstack.transport.stream.dialing import OPEN_STREAM
from fedstack.transport.wire.parcels import JOIN, SUFFIX

Handler: TypeAlias = "grpc.RpcMethodHandler[bytes, bytes]"


class GrpcDoor(grpc.GenericRpcHandler):
    """Passes calls over gRPC to a router.

    Args:
      router: The router, which may also run calls of other transports.
      services: The services of the router whose exchanges clients may send in one message.
      open_stream: Lets callers open streams; `None` if the server accepts none.
    """

    def __init__(
        self,
        router: CallRouter,
        services: Sequence[Service],
        open_stream: "Callable[[bytes, GrpcCall], Awaitable[bytes]] | None" = None,
    ) -> None:
        self._router = router
        self._wholes = WholeCalls(router.hand_over)
        self._routes: dict[str, Route] = {}  # of gRPC only
        if open_stream is not None:
            self._routes[OPEN_STREAM] = router.checking_route(OPEN_STREAM[1:], cast("Handle", open_stream))
        for service in services:
            for name, methods in service.methods.items():
                for method_name, method in methods.items():
                    if isinstance(method, ExchangeMethod):
                        path = f"{name}/{method_name}"
                        answer = functools.partial(self._wholes.answer, method)
                        self._routes[f"/{path}{SUFFIX}"] = router.unary_route(path, answer)
                        self._routes[f"/{name}/{JOIN}"] = self._join_route(f"{name}/{JOIN}")

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Handler:
        """Returns the handler of a call. gRPC calls this method once per call."""
        token = bearer_token(cast("Metadata", handler_call_details.invocation_metadata or ())) or None
        found = self._router.find(handler_call_details.method, token, self._routes)
        return self._refuses(found) if isinstance(found, Refusal) else self._runs(found, token)

    def _runs(self, route: Route, token: str | None) -> Handler:
        # gRPC calls a handler of single messages only after the message has been received. All handlers here are
        # therefore stream handlers: a call counts from its start, can be refused before the client sends anything, and
        # its message can be freed early.
        router = self._router

        async def handle(_: object, context: Context) -> bytes | None:
            call = GrpcCall(route, context, token)
            return await router.run(route, call, router.caller(call.peer, token))

        if route.one_answer:
            return grpc.stream_unary_rpc_method_handler(cast("Any", handle))
        return grpc.stream_stream_rpc_method_handler(cast("Any", handle))

    def _refuses(self, refusal: Refusal) -> Handler:
        async def handle(_: object, context: Context) -> None:
            self._router.refuse(refusal, context.peer())
            await abort(context, refusal.code, refusal.message)

        # Only this kind of handler answers without waiting for a message, so it can refuse calls of every kind.
        return grpc.stream_stream_rpc_method_handler(cast("Any", handle))

    def _join_route(self, name: str) -> Route:
        async def join(call: IncomingCall) -> None:
            await call.send_parcels(self._wholes.join(await call.only_message(name), call))

        return self._router.joining_route(name, join)
