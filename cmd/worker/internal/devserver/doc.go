// Package devserver runs a Temporal server inside this process: frontend,
// history, matching and the system worker, on SQLite. It is what `worker dev` and
// `worker server` serve, and what tests use where the server is the subject.
//
// It is a server for one machine. It listens on loopback addresses only and knows
// no authentication, no TLS, no archival and no replication.
//
//	Start --> reserve ports --> lock FILE.lock --> check or set up FILE --> namespaces
//	      --> four services, static membership --> wait until a workflow can be asked for
//
// # What it promises
//
//   - Every error that a person can act on (port taken, database in use, not a
//     database, no such directory) is found before any service starts, and is one
//     line that names the port or the file.
//   - A database file is in WAL mode with synchronous=FULL: what the server has
//     acknowledged survives the death of the process and of the machine. The file
//     is set up in one transaction; a process killed in the middle leaves a file
//     that the next start sets up.
//   - A file has one server at a time: a lock on FILE.lock, held by the process and
//     freed by the kernel however it dies. FILE.lock stays behind on purpose;
//     removing it would let two processes lock two different files of that name.
//   - Starting again on a file loses nothing, whatever the port.
//   - Nothing is written to standard output or standard error, no metrics or pprof
//     port is opened, the version of the server is not reported to anybody, and the
//     process is never ended: what the server calls fatal becomes an error of Start
//     or arrives on [Server.Failed].
//
// # Dynamic configuration
//
// By default it is tuned for latency on one machine: queues are read as soon as
// something is in them, task queues have one partition, rate limits are out of the
// way, workers' heartbeats are off. A workflow may have 1,000 updates in flight
// instead of ten, and as many queries that wait for its next task instead of one. Other limits that shape a design (updates per run, history and
// payload sizes) are Temporal's own. [Options.DefaultDynamicConfig]
// leaves all of it at Temporal's defaults, for comparison.
//
// The process's garbage is collected less often (GOGC=400), unless the environment
// variable GOGC is set.
//
// # Known limits
//
// The server's SQLite plugin keeps its connection until the process ends, even
// after [Server.Stop]: an in-memory database keeps its memory, and a file that was
// replaced meanwhile is refused rather than written to behind its name. The file
// system must support locks and shared memory, as local ones do. Outside Unix there
// is no lock: two servers on one file are not told of each other.
package devserver
