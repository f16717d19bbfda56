// Package tlsfiles makes TLS configurations from PEM files that are replaced
// while the process runs: authorities, a certificate and its key.
//
// The files are read again for each new connection, so that a rotated
// certificate or authority counts from the next connection on and no restart is
// needed. A file that cannot be used at that moment (half written, a key that
// is not the certificate's yet) leaves what was last good in force, and is
// reported.
//
// It must never put what a file holds into an error, accept less than TLS 1.2,
// or fall back to the system's authorities where a file names others.
package tlsfiles
