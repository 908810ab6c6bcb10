// Package webui serves Temporal's own web UI from this process.
//
// It puts together the parts of github.com/temporalio/ui-server/v2 that its
// server.NewServer puts together, on a listener and a logger of our own. The
// server there ends the process when it can't listen, and its logger writes to
// standard output, which belongs to `--json`.
//
//	browser --> 127.0.0.1:port --> static files of the UI
//	                           \-> /api/v1/... --> gRPC --> Temporal frontend
//
// It listens on loopback addresses only: the UI asks nobody who they are, and can
// terminate workflows. A taken port is reported before anything else is done. The
// Temporal server need not be up when the UI starts, and the UI fetches nothing
// from elsewhere (no news, no release check).
//
// When ui-server is upgraded, compare [Start] with its server.NewServer.
package webui
