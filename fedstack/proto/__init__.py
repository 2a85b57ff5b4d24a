"""Our protocol buffer messages: the .proto text and what protoc makes of it (`make protos`)."""
