//! HammerDB's script: it builds the database, or runs the users against it, as `PHASE` says.

use std::fmt::Write;

use super::{ExportError, heading_lines};
use crate::preset::{ExperimentKind, Preset};

/// Databases that a script is written for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Database {
    /// MySQL, as the paper had it.
    #[default]
    Mysql,
    /// MariaDB.
    Mariadb,
    /// PostgreSQL.
    Postgresql,
}

/// Warehouses: the paper's databases were 260 GB, a warehouse takes about 100 MB.
const WAREHOUSES: u32 = 2600;

pub(super) fn hammerdb_script(preset: &Preset, database: Database) -> Result<String, ExportError> {
    let ExperimentKind::Oltp { users, transactions, databases } = preset.kind else {
        return Err(ExportError::NoDatabase(preset.id));
    };
    let mut text = String::new();
    for line in heading_lines(preset, "A script of HammerDB") {
        let _ = writeln!(text, "# {line}");
    }
    let _ = write!(
        text,
        "# {users} users, {transactions} transactions each, on each of {databases} databases at once: one on each machine.\n\
         # The database's files lie on a stripe (RAID 0) over the machine's volumes; the paper flushed the page cache\n\
         # every second: while true; do sync; echo 3 >/proc/sys/vm/drop_caches; sleep 1; done\n\
         #   HAMMERDB_PASSWORD=... PHASE=build hammerdbcli auto {0}.tcl\n\
         #   HAMMERDB_PASSWORD=... PHASE=run hammerdbcli auto {0}.tcl\n\
         # WAREHOUSES makes it smaller or larger; {WAREHOUSES} are about the paper's 260 GB.\n\n",
        preset.id
    );
    text.push_str("set warehouses [expr {[info exists ::env(WAREHOUSES)] ? $::env(WAREHOUSES) : ");
    let _ = writeln!(text, "{WAREHOUSES}}}]");
    text.push_str("if {![info exists ::env(PHASE)] || $::env(PHASE) ni {build run}} {\n");
    text.push_str("    puts stderr \"set PHASE to build or run\"\n    exit 2\n}\n");
    text.push_str("if {![info exists ::env(HAMMERDB_PASSWORD)]} {\n");
    text.push_str(
        "    puts stderr \"set HAMMERDB_PASSWORD to the password of the database's user\"\n    exit 2\n}\n\n",
    );
    let (name, prefix) = match database {
        Database::Mysql => ("mysql", "mysql"),
        Database::Mariadb => ("maria", "maria"),
        Database::Postgresql => ("pg", "pg"),
    };
    let _ = write!(text, "dbset db {name}\ndbset bm TPC-C\n");
    match database {
        Database::Mysql | Database::Mariadb => {
            let _ = write!(
                text,
                "diset connection {prefix}_host 127.0.0.1\ndiset connection {prefix}_port 3306\n\
                 diset tpcc {prefix}_user root\ndiset tpcc {prefix}_pass $::env(HAMMERDB_PASSWORD)\n\
                 diset tpcc {prefix}_dbase tpcc\n"
            );
        }
        Database::Postgresql => {
            text.push_str(
                "diset connection pg_host localhost\ndiset connection pg_port 5432\ndiset tpcc pg_superuser postgres\n\
                 diset tpcc pg_superuserpass $::env(HAMMERDB_PASSWORD)\ndiset tpcc pg_user tpcc\n\
                 diset tpcc pg_pass $::env(HAMMERDB_PASSWORD)\ndiset tpcc pg_dbase tpcc\n",
            );
        }
    }
    let _ = write!(
        text,
        "\nif {{$::env(PHASE) eq \"build\"}} {{\n    diset tpcc {prefix}_count_ware $warehouses\n    \
         diset tpcc {prefix}_num_vu [numberOfCPUs]\n    buildschema\n    exit 0\n}}\n\n\
         diset tpcc {prefix}_driver test\ndiset tpcc {prefix}_total_iterations {transactions}\n\
         diset tpcc {prefix}_raiseerror true\ndiset tpcc {prefix}_keyandthink false\n\
         diset tpcc {prefix}_allwarehouse false\nloadscript\nvuset vu {users}\nvuset logtotemp 1\nvucreate\n\
         set begun [clock milliseconds]\nvurun\nset ended [clock milliseconds]\nvudestroy\n\
         puts \"seconds for [expr {{{users} * {transactions}}}] transactions: [expr {{($ended - $begun) / 1000.0}}]\"\n"
    );
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Settings that HammerDB's own configuration has for a database.
    fn known(prefix: &str) -> Vec<String> {
        let words = [
            "host",
            "port",
            "user",
            "pass",
            "dbase",
            "superuser",
            "superuserpass",
            "count_ware",
            "num_vu",
            "driver",
            "total_iterations",
            "raiseerror",
            "keyandthink",
            "allwarehouse",
        ];
        words.iter().map(|word| format!("{prefix}_{word}")).collect()
    }

    #[test]
    fn scripts_have_the_papers_numbers_and_known_settings_only() {
        let preset = Preset::find("demartek-oltp").unwrap();
        for (database, prefix) in
            [(Database::Mysql, "mysql"), (Database::Mariadb, "maria"), (Database::Postgresql, "pg")]
        {
            let text = hammerdb_script(preset, database).unwrap();
            assert!(text.contains("_allwarehouse false\n"), "its test driver fails with it: {text}");
            assert!(text.contains("vuset vu 70\n") && text.contains("_total_iterations 20000\n"), "{text}");
            for line in text.lines().map(str::trim).filter(|line| line.starts_with("diset ")) {
                let words: Vec<&str> = line.split(' ').collect();
                assert!(words.len() == 4 && ["connection", "tpcc"].contains(&words[1]), "{line}");
                assert!(known(prefix).contains(&words[2].to_owned()), "{line}");
            }
            let code: String =
                text.lines().filter(|line| !line.starts_with('#')).collect::<Vec<_>>().join("\n");
            for (open, close) in [('{', '}'), ('[', ']')] {
                assert_eq!(code.matches(open).count(), code.matches(close).count(), "{open} in {code}");
            }
            assert!(code.matches('"').count().is_multiple_of(2) && !code.contains("_pass root"));
        }
    }
}
