// Package workflows holds the admission workflow and the contract with it.
//
// One gate is one workflow with the ID "sluice/<gate ID>". It has authority
// over the gate's queue and leases: what it answered is what holds. It is a
// shell around [admission.Scheduler]: it restores the state, takes in messages,
// lets the scheduler decide, answers, sets one timer and continues as new.
//
//	update exchange --+                      +--> answer to the holder
//	signal exchange --+--> decode --> Apply -+--> open waits that have news end
//	timer           --+                      +--> the next timer
//
// Handlers (the messages are in package contract):
//
//	update exchange   one batched message from a holder; the fast path
//	update wait       ends when its holder has news, at once where it isn't welcome
//	update operate    one act of an operator; the answer says what it came to
//	signal exchange   the same message, one way and durable
//	signal configure  change limits for a while, or the policy
//	signal pause, resume
//	query grants      what a holder has not confirmed, without a change
//	query status      the whole gate, for a person
//
// # Invariants
//
//   - An exchange is applied once, whatever the server does with it: repeated,
//     reordered, answered to nobody, or caught in continue-as-new.
//   - The server runs update handlers before the main coroutine sees signals
//     that came earlier, so every handler takes in the waiting signals first.
//   - Nothing a message contains fails the workflow or its task: what can't be
//     decoded is refused and counted.
//   - No ticket and no lease: no timer, no event.
//   - Only `wait` ever waits. Accepted updates end and signals are drained
//     before the run continues as new.
//
// # When something breaks
//
// A state written under rules that this program doesn't know fails the workflow
// task, not the workflow: another host, or a newer program, takes over.
package workflows
