// Command worker runs Sluice: a demonstration with everything in it, its parts as
// processes of their own, a check of policy files, and an operator's view of gates
// and hand on them.
//
//	worker dev            server + web UI + provider + worker processes + demonstration
//	worker server         Temporal server and web UI
//	worker provider       a provider with a real quota, to call instead of a paid one
//	worker run            a worker with the plugin, on any Temporal cluster
//	worker soak           workers and the server killed under load, and judged
//	worker schema         JSON Schema of the policy file
//	worker validate FILE  the faults of a policy file, or the effective policy
//	worker gates          the gates that run in a namespace
//	worker describe GATE  one of them: limits, leases, queue with reasons, cooldown
//	worker watch GATE     the same, live
//	worker dashboard      a page that shows all of them live
//	worker pause, resume, set, reset, cancel-ticket, revoke-lease GATE ...
//	worker version
//
// # What it promises
//
//   - Standard output holds results only: tables, JSON, policies. Progress, logs
//     and errors go to standard error.
//   - With --json, the last line of standard output is one JSON object.
//   - An error is one line, "worker: ...", that says what to do; of a policy with
//     faults, one line each. Exit status 2 is a mistake in the command line, 1 any
//     other error, 130 a `dev --once` or a `soak` that was interrupted before it had a result.
//   - An operator's act ends when the gate has done it; exit status 1 if the gate
//     refused it or nobody answered. It is done once, however often it was sent.
//   - Ctrl-C or SIGTERM: activities drain, leases are given back, the database is
//     closed, exit status 0. A second one ends the process at once; worker processes
//     of the demonstration notice and go as well.
//
// Only this command and the tests link the Temporal server.
package main
