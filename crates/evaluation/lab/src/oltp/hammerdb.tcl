# Builds the tables of TPROC-C in a database that has none, or lets users do a number of transactions each: as the
# environment says. It is run by HammerDB's command line.

set users $::env(EVAL_USERS)
if {$::env(EVAL_DATABASE) eq "pg"} {
    set prefix pg
    dbset db pg
    dbset bm TPC-C
    # A directory in place of a host's name is that of a socket. The kernel tells the server who asks; no password does.
    diset connection pg_host $::env(EVAL_SOCKET)
    diset connection pg_sslmode disable
    foreach {name value} {pg_superuser bench pg_superuserpass none pg_defaultdbase postgres
        pg_user bench pg_pass none pg_dbase bench} {
        diset tpcc $name $value
    }
} else {
    # HammerDB's own library for MariaDB, else Debian's for MySQL.
    set prefix [expr {[catch {package require mariatcl}] ? "mysql" : "maria"}]
    dbset db $prefix
    dbset bm TPC-C
    diset connection ${prefix}_host localhost
    diset connection ${prefix}_socket $::env(EVAL_SOCKET)
    foreach {name value} {user root pass none dbase tpcc} {
        diset tpcc ${prefix}_$name $value
    }
}

if {$::env(EVAL_PHASE) eq "build"} {
    diset tpcc ${prefix}_count_ware $::env(EVAL_WAREHOUSES)
    diset tpcc ${prefix}_num_vu [expr {min($users, $::env(EVAL_WAREHOUSES), 8)}]
    buildschema
} else {
    # Only its timed driver knows of users on all warehouses.
    foreach {name value} [list driver test total_iterations $::env(EVAL_TRANSACTIONS) raiseerror true \
        keyandthink false allwarehouse false] {
        diset tpcc ${prefix}_$name $value
    }
    loadscript
    vuset vu $users
    vuset logtotemp 0
    vuset showoutput 0
    vucreate
    set begun [clock milliseconds]
    vurun
    puts "eval-seconds [expr {([clock milliseconds] - $begun) / 1000.0}]"
    vudestroy
}
exit 0
