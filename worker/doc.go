// Package worker is the Temporal plugin: one value in client.Options.Plugins,
// and everything in Sluice works.
//
//	plugin, err := worker.NewPlugin(worker.Options{PolicyFile: "sluice.yaml"})
//	c, err := client.Dial(client.Options{Plugins: []client.Plugin{plugin}})
//	w := sdkworker.New(c, "summaries", sdkworker.Options{})
//
// It has authority over the lives of two things in the process: the gates that
// activities use, and the host, a worker on the task queue "sluice" that runs
// admission workflows. Both start with the first worker of the client and end
// with the last one.
//
//	StartWorker: own client -> host -> gates -> the user's worker
//	StopWorker:  the user's worker drains -> last exchange -> host -> own client
//
// # Invariants
//
//   - Nothing but the plugin is needed: admission workflows are started by the
//     first holder that needs them.
//   - Sluice's own client has the user's address, credentials and data
//     converter, but none of the user's plugins and interceptors.
//   - The host doesn't take part in the user's worker versioning.
//   - One plugin value serves one client.
//
// # When something breaks
//
// A policy with faults stops the program at NewPlugin, with all of them. If the
// user's worker can't start, what StartWorker began is undone. If the farewell
// can't be sent on stop, that is logged and the leases end after the holder TTL.
package worker
