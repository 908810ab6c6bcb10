// Package bench is `worker bench`: how fast a gate is, measured on a Temporal
// server of its own, in this process, on a file that is durable (synchronous=FULL).
//
//	Throughput   callers in a loop of acquire and release; beside it, on a second
//	             server with Temporal's own dynamic configuration, a plain semaphore
//	             workflow: one signal to acquire, a poll by query, one to release;
//	             and an update that does nothing, which no exchange can beat
//	Holders      1,200 callers over 1 to 100 holders, each with its own connection
//	Wake         cap 1, ten holders: from a release to the next holder's start
//	Pacing       a rate over two worker processes, judged at the provider; beside it
//	             Temporal's own rate of a task queue, and calls by the clock,
//	             which show what the machine itself does to a steady rate
//	Mixed        pacing, a cap, cooldowns and cancellations: is anything lost, and
//	             how long after a cooldown does the first call start
//	Queue        a long queue that moves slowly: how long a step of the gate takes,
//	             how large the state is that a run hands to the next
//	Idle         what a gate writes that nobody uses
//
// Machines are noisy, so a figure means something beside another one of the same
// run: that is what the yardsticks are for. What is measured stands in the results'
// fields; what a gate decided is read from its histories and its status.
//
// Everything is removed when a benchmark ends, however it ends: the database is a
// temporary file, and worker processes go when their standard input ends.
package bench
