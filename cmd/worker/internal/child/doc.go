// Package child runs processes of this program for the commands that need
// several: the demonstration and the soak.
//
//	parent --start--> child
//	       --order: one line of JSON, then further lines--> its standard input
//	       <--lines-- its standard output; the first says that it is ready
//
// It has authority over a child's life: the end of a child's standard input tells
// it to drain and go, so none outlives its parent, however that dies. One that was
// told and isn't gone after 10 s is killed.
package child
