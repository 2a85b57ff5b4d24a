"""Where computations run: servers, clusters, coordinators, the command line."""
