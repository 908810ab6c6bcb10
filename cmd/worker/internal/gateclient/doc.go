// Package gateclient is the operator's side of a gate: it finds the gates that
// run in a namespace, asks them how they are, and makes an operator's acts.
//
//	Find    the running workflows of type sluice.Admission, from visibility
//	Status  query `status`; the gate isn't changed
//	Histories of all its runs, for those who judge what it did
//	Operate update `operate`; it is in the workflow's history with who and why
//
// An act is made once: a call whose outcome is unknown is made again under the
// same ID, and the gate does nothing twice under one ID.
package gateclient
