import os

# Servers are started from tests that have channels open: gRPC would put itself in order in the
# child before that becomes the server, and now and then it crashes there. Said here, since gRPC
# looks when it is imported, and what conftest.py imports does so.
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"
