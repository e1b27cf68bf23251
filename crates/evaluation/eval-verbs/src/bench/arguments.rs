//! fio's options on the command line, among the verb's own.
//!
//! Invariant: an unknown option is passed to fio's parser, which refuses what it does not know; nothing is
//! dropped.

/// The words that stand between the verb and its own options: clap would not know them. Everything that is
/// no option of `bench` and looks like one is fio's.
pub fn reorder_words(args: Vec<std::ffi::OsString>) -> Vec<std::ffi::OsString> {
    const OWN_OPTIONS: [&str; 11] = [
        "--job",
        "--map",
        "--threads",
        "--sessions",
        "--core",
        "--io",
        "--poll",
        "--events",
        "--force",
        "--json",
        "--help",
    ];
    const OPTIONS_WITH_VALUE: [&str; 7] =
        ["--job", "--map", "--threads", "--sessions", "--core", "--io", "--poll"];
    if args.get(1).is_none_or(|verb| verb != "bench") {
        return args;
    }
    let (mut own, mut words) = (Vec::new(), Vec::new());
    let mut args = args.into_iter().peekable();
    while let Some(arg) = args.next() {
        let text = arg.to_string_lossy().into_owned();
        // What follows is fio's, as the usage line has it.
        if text == "--" {
            words.extend(args);
            break;
        }
        let name = text.split('=').next().unwrap_or_default();
        if !text.starts_with("--") || OWN_OPTIONS.contains(&name) {
            let takes = OPTIONS_WITH_VALUE.contains(&text.as_str());
            own.push(arg);
            if takes {
                own.extend(args.next());
            }
            continue;
        }
        words.push(arg);
        if !text.contains('=')
            && let Some(value) = args.next_if(|next| {
                !next.to_string_lossy().starts_with("--")
                    && !client::is_remote_volume_name(&next.to_string_lossy())
                    && super::disk::local_disk_path(&next.to_string_lossy()).is_none()
            })
        {
            words.push(value);
        }
    }
    if !words.is_empty() {
        own.push("--".into());
        own.extend(words);
    }
    own
}

#[cfg(test)]
mod tests {
    use super::reorder_words;

    #[test]
    fn fios_words_may_stand_anywhere() {
        let line = "blockwire bench --rw=randwrite iscsi://h/t/0 --threads 2 --iodepth 8 --time_based nvme+tcp://h/n/1";
        let sorted = reorder_words(line.split(' ').map(Into::into).collect());
        let text: Vec<&str> = sorted.iter().filter_map(|word| word.to_str()).collect();
        assert_eq!(
            text.join(" "),
            "blockwire bench iscsi://h/t/0 --threads 2 nvme+tcp://h/n/1 -- --rw=randwrite --iodepth 8 --time_based"
        );
        // As the usage line has it.
        for line in [
            "blockwire bench iscsi://h/t/0 --json -- --rw=read --iodepth 8",
            "blockwire bench iscsi://h/t/0 --rw=read --json -- --iodepth 8",
            "blockwire bench iscsi://h/t/0 --json --rw=read --iodepth 8 --",
        ] {
            let sorted = reorder_words(line.split(' ').map(Into::into).collect());
            let text: Vec<&str> = sorted.iter().filter_map(|word| word.to_str()).collect();
            assert_eq!(text.join(" "), "blockwire bench iscsi://h/t/0 --json -- --rw=read --iodepth 8");
        }
        let other: Vec<std::ffi::OsString> = ["blockwire", "info", "--rw"].map(Into::into).into();
        assert_eq!(reorder_words(other.clone()), other);
    }
}
