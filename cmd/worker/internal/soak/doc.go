// Package soak is `worker soak`: load on one gate from real processes, which are
// killed and stopped meanwhile, and a judgement of what became of it.
//
//	Run:
//	  this process --start--> the provider's process     (ServeProvider)
//	               --start--> the Temporal server's      (Serve), killed and started anew
//	               --start--> N worker processes         (Work), killed, stopped, started anew
//	               --start--> workflows --> activities --> gate --> provider
//	  then: provider's record + gate's status + gate's histories --> judge --> Result
//
// The load is batches of calls: some are an activity each, which knows nothing of
// admission; most are made by long-running activities, one after the other, each
// with a ticket of its own. An activity costs the embedded server some ten
// transactions, a ticket less than one: so a run of tens of thousands of attempts
// ends within minutes, and queue and gate are as busy as the policy lets them be.
//
// # What is judged, and from what
//
// Nothing is believed that a worker says. An attempt is what reached the provider;
// it names lease and generation in a header. What the gate decided is read by
// replaying the histories of all its runs: the watcher sees each exchange when it
// is applied and asks the replayed gate, by its own queries, what came of it; so
// grants that a worker read by query are known as well, and a history that doesn't
// replay ends the soak with an error. The books are a second, naive account of
// queue and leases.
//
//   - lost: calls that the provider never served and whose workflow names no error of
//     their own; tickets that the books still have when the gate's queue is empty.
//   - over_cap, zombie_overlap: attempts that arrived with the cap full. One belongs
//     to a zombie if its process stood still and it was made under a lease granted
//     before the process went on. The provider learns of a caller that left up to
//     noticeLag after the caller gave its lease back; so much is conceded.
//   - order_violations: a ticket was granted while an earlier one stood in the queue
//     whose holder had been heard of within the presence grace.
//   - cooldowns_lost: of a 429 whose worker was heard of livedFor later, no release
//     with an overload came, or the gate's status then showed no such cooldown.
//   - reclaim: from the kill of a worker until the gate's status shows no lease of it;
//     if the server was away meanwhile, from its return.
//   - growth: medians of the last server's quarters under load.
//
// # When something breaks
//
// A process that ends by itself ends the soak with an error that names its log. When
// no attempt arrives for a minute the load is given up, and what has no end counts as
// lost. No process outlives this one: each goes when its standard input ends.
package soak
