//! The header compared with this crate: a C compiler reports the value of each name.

use std::fmt::Write as _;
use std::mem::offset_of;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::abi::{self, Completion, Geometry, NvmeAnswer, NvmeCommand, Options, Piece, Request, ScsiAnswer};
use crate::status::Status;

fn include() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("include")
}

/// Every name of the header's that is a number, with what it is here.
fn numbers() -> Vec<(&'static str, i64)> {
    macro_rules! ours {
        ($($name:ident)*) => { vec![$((stringify!($name), i64::from(abi::$name))),*] };
    }
    macro_rules! statuses {
        ($($name:ident)*) => { [$((concat!("BW_E_", stringify!($name)), i64::from(Status::$name.0))),*] };
    }
    let mut all = ours! {
        BW_ABI_VERSION BW_IO_AUTO BW_IO_URING BW_IO_EPOLL BW_NEXUS_PASSING BW_NEXUS_LASTING
        BW_STATE_OPENING BW_STATE_OPEN BW_GEOMETRY_READ_ONLY BW_GEOMETRY_WRITE_CACHE BW_GEOMETRY_THIN
        BW_GEOMETRY_ZEROES BW_READ BW_WRITE BW_FLUSH BW_DISCARD BW_WRITE_ZEROES BW_FUA BW_ALLOCATE
        BW_PIECES_MAX BW_DATA_NONE BW_DATA_IN BW_DATA_OUT BW_SENSE_MAX
    };
    all.push(("BW_OK", Status::OK.0.into()));
    all.extend(statuses! {
        AGAIN USAGE UNREACHABLE UNPROVEN NOT_FOUND TIMED_OUT FAILED MEDIUM NO_SPACE READ_ONLY RESERVED
        UNSUPPORTED ABORTED LOST THREAD
    });
    all
}

/// Every struct with its fields: size or offset.
fn layouts() -> Vec<(String, usize)> {
    macro_rules! layout {
        ($ours:ty, $name:literal: $($field:ident)*) => {
            [(format!("sizeof({})", $name), size_of::<$ours>())]
                .into_iter()
                .chain([$((format!("offsetof({}, {})", $name, stringify!($field)), offset_of!($ours, $field))),*])
        };
    }
    layout!(Options, "bw_options": size io nexus open_timeout_ms close_timeout_ms poll_us_max memory)
        .chain(layout!(Geometry, "bw_geometry": bytes block physical io_max flags))
        .chain(layout!(Request, "bw_request": op flags data len offset user))
        .chain(layout!(Piece, "bw_piece": data len))
        .chain(layout!(Completion, "bw_completion": user volume id block status reserved))
        .chain(layout!(ScsiAnswer, "bw_scsi_answer": status transferred underflow overflow sense_len sense))
        .chain(layout!(NvmeCommand, "bw_nvme_command": opcode flags reserved nsid cdw2 cdw3 cdw10 cdw11 cdw12 cdw13
            cdw14 cdw15))
        .chain(layout!(NvmeAnswer, "bw_nvme_answer": status transferred result))
        .collect()
}

/// A directory of ours alone, under a name that nobody else can foretell.
fn own_directory(kind: &str) -> PathBuf {
    use std::hash::BuildHasher;
    use std::os::unix::fs::DirBuilderExt;
    let random = std::hash::RandomState::new().hash_one(kind);
    let dir = std::env::temp_dir().join(format!("blockwire-capi-{kind}-{random:016x}"));
    std::fs::DirBuilder::new().mode(0o700).create(&dir).unwrap();
    dir
}

fn compiled(compiler: &str, flags: &[&str], name: &str, text: &str) -> PathBuf {
    let room = own_directory(name);
    let (source, program) = (room.join("source"), room.join("program"));
    std::fs::write(&source, text).unwrap();
    let mut command = Command::new(compiler);
    command.args(["-Wall", "-Wextra", "-Werror", "-pedantic"]).args(flags).arg("-I").arg(include());
    let output = command.arg(&source).arg("-o").arg(&program).output().expect("a C compiler is there");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    program
}

#[test]
fn the_headers_numbers_and_layouts_are_ours() {
    let mut text = "#include <blockwire.h>\n#include <stdio.h>\nint main(void) {\n".to_owned();
    let mut wanted = Vec::new();
    let names = numbers().into_iter().map(|(name, number)| (name.to_owned(), number));
    for (name, number) in names.chain(layouts().into_iter().map(|(name, size)| (name, size as i64))) {
        writeln!(text, "printf(\"%lld\\n\", (long long)({name}));").unwrap();
        wanted.push((name, number));
    }
    text += "return 0; }\n";
    let program = compiled("cc", &["-std=c99", "-x", "c"], "numbers", &text);
    let output = Command::new(&program).output().unwrap();
    std::fs::remove_dir_all(program.parent().unwrap()).unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    let found: Vec<i64> = said.lines().map(|line| line.parse().unwrap()).collect();
    assert_eq!(found.len(), wanted.len());
    for ((name, number), found) in wanted.into_iter().zip(found) {
        assert_eq!(found, number, "{name}");
    }
}

#[test]
fn every_number_of_the_header_is_compared() {
    let header = std::fs::read_to_string(include().join("blockwire.h")).unwrap();
    let known = numbers();
    for line in header.lines().filter_map(|line| line.strip_prefix("#define BW_")) {
        let name = format!("BW_{}", line.split_whitespace().next().unwrap());
        assert!(known.iter().any(|(known, _)| *known == name), "{name} is compared with nothing");
    }
}

#[test]
fn every_call_of_the_header_is_here_and_none_besides() {
    let header = std::fs::read_to_string(include().join("blockwire.h")).unwrap();
    let mut declared: Vec<&str> = header
        .lines()
        .filter(|line| !line.starts_with([' ', '*', '/', '#']) && line.contains('('))
        .filter_map(|line| line.split('(').next()?.rsplit([' ', '*']).next())
        .collect();
    let source = concat!(include_str!("lib.rs"), include_str!("raw_commands.rs"));
    let mut defined: Vec<&str> =
        source.lines().filter_map(|line| line.split("extern \"C\" fn ").nth(1)?.split('(').next()).collect();
    declared.sort_unstable();
    defined.sort_unstable();
    assert_eq!(declared, defined);
}

#[test]
fn the_header_is_cpp_too() {
    let program = compiled(
        "c++",
        &["-std=c++98", "-Wno-long-long", "-x", "c++", "-c"],
        "cpp",
        "#include <blockwire.h>\nbw_options options;\n",
    );
    std::fs::remove_dir_all(program.parent().unwrap()).unwrap();
}

#[test]
fn every_code_has_words_and_a_number_of_the_systems() {
    for code in -15..0 {
        let (words, errno) = Status(code).message_and_errno();
        assert!(errno > 0 && words != c"an unknown code", "{code}");
    }
    assert_eq!(Status(0).message_and_errno().1, 0);
    assert_eq!(Status(-16).message_and_errno().0, c"an unknown code");
}
