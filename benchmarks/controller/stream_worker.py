"""A task worker that answers over a gRPC stream at once; for `pass_through.py --workers grpc`."""

import asyncio
import sys

import grpc

from agentrl_core.rpc.worker_stream_pb2 import WorkerStreamEnvelope

SAID = (
    b'{"messages":[{"role":"user","content":"'
    + b"x" * 1850
    + b'"}],"tools":null,"status":"running","finish":false,"reward":0.0,"metrics":{}}'
)


async def main(port: int) -> None:
    """Serve until the end of the stream."""
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        call = channel.stream_stream(
            "/agentbench.Controller/WorkerStream",
            request_serializer=WorkerStreamEnvelope.SerializeToString,
            response_deserializer=WorkerStreamEnvelope.FromString,
        )()
        beat = WorkerStreamEnvelope(type=WorkerStreamEnvelope.MessageType.HEARTBEAT)
        heartbeat = beat.receive_heartbeat_request
        heartbeat.id, heartbeat.name, heartbeat.concurrency, heartbeat.native = "bench", "bench", 10**6, True
        heartbeat.indices.add().int_value = 0
        await call.write(beat)
        print("ready", flush=True)
        writing = asyncio.Lock()  # A stream takes one write at a time.

        async def keep_beating() -> None:
            while True:
                await asyncio.sleep(1.0)
                async with writing:
                    await call.write(beat)

        beating = asyncio.create_task(keep_beating())
        while (envelope := await call.read()) is not grpc.aio.EOF:
            if envelope.type == WorkerStreamEnvelope.MessageType.REQUEST:
                reply = WorkerStreamEnvelope(id=envelope.id, type=WorkerStreamEnvelope.MessageType.RESPONSE)
                listing = envelope.worker_request.endpoint == "get_sessions"
                reply.worker_response.code = 200
                reply.worker_response.json = b"{}" if listing else SAID
                reply.worker_response.finish = False
                async with writing:
                    await call.write(reply)
        beating.cancel()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
