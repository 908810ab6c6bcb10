// Package demo is the demonstration of `worker dev`: an Experiment's calls, all
// at once, to a provider with a real quota, once per row: without admission, with
// a cap, with a cap and pacing. What is shown was counted at the provider.
//
//	StartProvider:
//	  this process --start--> the provider's process (this program, ServeProvider)
//	Demo.Run, once per row:
//	  this process --start--> 2 worker processes (this program, Work)
//	               --start--> workflows --> activities, all at once
//	  worker processes --HTTP--> provider, a run per row
//
// It has authority over its processes: an order reaches each on its standard
// input, and the end of that input tells it to drain and go. So none outlives this
// process, however that dies.
//
// # Invariants
//
//   - Rows run one after the other, with processes, task queue, gate and record at
//     the provider of their own.
//   - A row is measured with all its processes ready, their connections and gate warm.
//   - The worker processes of the last row stay until Close: they host the gates'
//     workflows, which can be looked at meanwhile.
//
// # When something breaks
//
// A worker process that ends by itself, or a row that takes longer than a minute,
// ends the demonstration with an error that says which. A process that hasn't
// drained 10 s after it was told to is killed.
package demo
