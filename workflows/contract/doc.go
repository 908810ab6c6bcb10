// Package contract holds the messages between holders and gates, generated from
// admission.proto, which documents them. They only grow.
package contract

//go:generate protoc --go_out=. --go_opt=paths=source_relative admission.proto
