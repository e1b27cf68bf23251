//! A guest's boot image: a kernel of a distribution, and an initramfs of this machine's own programs.
//!
//! The archive is cpio's "new ASCII" form (Documentation/driver-api/early-userspace/buffer-format.rst).
//! Invariant: nothing is installed or changed; the kernel is found, not fetched.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::Failure;
use crate::place::CommandLocation;

/// Modules without which the guest has no disk.
const REQUIRED_MODULES: [&str; 2] = ["virtio_pci", "virtio_blk"];
/// Programs of the guest.
const GUEST_PROGRAMS: [&str; 2] = ["busybox", "fio"];
/// A directory that holds what a kernel package holds (`boot`, `lib/modules`), if it is not `/`.
const KERNEL_ROOT_VARIABLE: &str = "BLOCKWIRE_KERNEL";

/// The guest's first process.
const INIT_SCRIPT: &str = "#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/bin:/sbin:/usr/bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mount -t tmpfs tmp /tmp
for module in $(cat /modules); do insmod $module || echo \"@@failed $module\"; done
n=0
while [ ! -b /dev/vda ] && [ $n -lt 100 ]; do usleep 100000; n=$((n + 1)); done
[ -b /dev/vda ] || echo '@@failed there is no disk'
echo \"@@ready $(uname -r)\"
while read -r name words; do
  echo \"@@begin $name\"
  fio $words --output=/tmp/told 2>/tmp/said
  echo \"@@end $name $?\"
  cat /tmp/said /tmp/told
  echo \"@@told $name\"
done </loads
echo '@@over'
poweroff -f
";

/// A kernel and the directory of its modules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct GuestKernel {
    pub(super) file: PathBuf,
    pub(super) version: String,
    root: PathBuf,
}

impl GuestKernel {
    /// The kernel of this machine's packages, or of the directory that the environment names.
    pub(super) fn find() -> Result<GuestKernel, Failure> {
        let root = std::env::var_os(KERNEL_ROOT_VARIABLE).map_or(PathBuf::from("/"), PathBuf::from);
        GuestKernel::find_under(&root).ok_or_else(|| {
            Failure::new(format!(
                "{} holds no kernel for a guest: apt install linux-image-cloud-amd64; or, without installing it, \
                 apt-get download the package that this one depends on, dpkg-deb -x it to a directory, and \
                 name that directory by {KERNEL_ROOT_VARIABLE}=DIR",
                root.display()
            ))
        })
    }

    fn find_under(root: &Path) -> Option<GuestKernel> {
        let entries = std::fs::read_dir(root.join("boot")).ok()?;
        let mut all: Vec<GuestKernel> = entries
            .flatten()
            .filter_map(|entry| {
                let version = entry.file_name().to_str()?.strip_prefix("vmlinuz-")?.to_owned();
                root.join("lib/modules").join(&version).join("kernel").is_dir().then(|| GuestKernel {
                    file: entry.path(),
                    version,
                    root: root.to_owned(),
                })
            })
            .collect();
        all.sort_by(|a, b| a.version.cmp(&b.version));
        all.pop()
    }

    fn modules_dir(&self) -> PathBuf {
        self.root.join("lib/modules").join(&self.version)
    }

    /// Files of the modules that the guest needs, each behind those that it needs itself.
    fn required_modules(&self) -> Result<Vec<PathBuf>, Failure> {
        let dir = self.modules_dir();
        let read = |name: &str| {
            let path = dir.join(name);
            std::fs::read_to_string(&path).map_err(|why| Failure::new(format!("{}: {why}", path.display())))
        };
        let index = match dir.join("modules.dep").exists() {
            true => read("modules.dep")?,
            // A package that was only unpacked has no index yet. It is printed, before all else that
            // depmod knows: nothing is written where the system's own modules are.
            false => {
                let root = self.root.display().to_string();
                CommandLocation::Here.run(&["depmod", "-n", "-b", &root, &self.version])?
            }
        };
        let builtin = read("modules.builtin")?;
        let names = modules_with_dependencies(&index, &builtin, &REQUIRED_MODULES)?;
        Ok(names.into_iter().map(|name| dir.join(name)).collect())
    }
}

/// What is missing on this machine to make a guest; `None`: nothing.
pub(super) fn missing_prerequisite() -> Option<String> {
    let lacks = [("busybox", "busybox-static"), ("fio", "fio"), ("depmod", "kmod"), ("ldd", "libc-bin")];
    let lacking = lacks.iter().find(|(program, _)| !CommandLocation::Here.has_program(program));
    lacking.map(|(program, package)| format!("{program} is missing: apt install {package}"))
}

/// The name of a module's file: `kernel/drivers/block/virtio_blk.ko.xz` is `virtio_blk`.
fn module_name(file: &str) -> String {
    let name = file.rsplit('/').next().unwrap_or(file);
    name.split(".ko").next().unwrap_or(name).replace('-', "_")
}

/// Modules with all that they need, in the order in which they are loaded; those in the kernel are left out.
fn modules_with_dependencies(index: &str, builtin: &str, wanted: &[&str]) -> Result<Vec<String>, Failure> {
    let mut order: Vec<String> = Vec::new();
    for name in wanted {
        if builtin.lines().any(|line| module_name(line) == *name) {
            continue;
        }
        let line = index
            .lines()
            .find(|line| line.split_once(':').is_some_and(|(file, _)| module_name(file) == *name));
        let (file, needs) = line
            .and_then(|line| line.split_once(':'))
            .ok_or_else(|| Failure::new(format!("the kernel has no {name}")))?;
        // depmod lists what is loaded first last.
        let needs = needs.split_ascii_whitespace().rev().chain([file]);
        for file in needs {
            if !order.iter().any(|known| known == file) {
                order.push(file.to_owned());
            }
        }
    }
    Ok(order)
}

/// An archive that grows.
#[derive(Default)]
struct CpioArchive {
    bytes: Vec<u8>,
    made: BTreeSet<PathBuf>,
    next: u32,
}

const DIRECTORY_MODE: u32 = 0o040_755;
const PROGRAM_MODE: u32 = 0o100_755;

impl CpioArchive {
    fn push_entry(&mut self, name: &str, mode: u32, data: &[u8]) {
        self.next += 1;
        let links = if mode == DIRECTORY_MODE { 2 } else { 1 };
        let fields =
            [self.next, mode, 0, 0, links, 0, data.len() as u32, 0, 0, 0, 0, name.len() as u32 + 1, 0];
        self.bytes.extend(b"070701");
        for field in fields {
            self.bytes.extend(format!("{field:08X}").bytes());
        }
        self.bytes.extend(name.bytes().chain([0]));
        self.pad_to_alignment();
        self.bytes.extend(data);
        self.pad_to_alignment();
    }

    fn pad_to_alignment(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }

    fn add_directory(&mut self, path: &Path) {
        let mut above: Vec<&Path> = path.ancestors().filter(|at| at.file_name().is_some()).collect();
        above.reverse();
        for at in above {
            if self.made.insert(at.to_owned()) {
                self.push_entry(&at.display().to_string(), DIRECTORY_MODE, &[]);
            }
        }
    }

    /// A file at an absolute path.
    fn add_file(&mut self, at: &Path, data: &[u8]) {
        let at = at.strip_prefix("/").unwrap_or(at);
        if let Some(above) = at.parent() {
            self.add_directory(above);
        }
        if self.made.insert(at.to_owned()) {
            self.push_entry(&at.display().to_string(), PROGRAM_MODE, data);
        }
    }

    fn finish(mut self) -> Vec<u8> {
        self.push_entry("TRAILER!!!", 0, &[]);
        self.bytes
    }
}

/// Writes the initramfs whose guest runs these loads: each a name and words for fio.
pub(super) fn write_initramfs(
    kernel: &GuestKernel,
    loads: &[(String, Vec<String>)],
    to: &Path,
) -> Result<(), Failure> {
    let read =
        |path: &Path| std::fs::read(path).map_err(|why| Failure::new(format!("{}: {why}", path.display())));
    let mut archive = CpioArchive::default();
    for dir in ["proc", "sys", "dev", "tmp", "bin", "sbin", "etc"] {
        archive.add_directory(Path::new(dir));
    }
    for program in GUEST_PROGRAMS {
        let found = CommandLocation::Here.run(&["sh", "-c", "command -v \"$1\"", "sh", program])?;
        let found = PathBuf::from(found.trim());
        archive.add_file(&Path::new("/bin").join(program), &read(&found)?);
        for library in shared_libraries(&found) {
            archive.add_file(&library, &read(&library)?);
        }
    }
    let mut names = String::new();
    for module in kernel.required_modules()? {
        let file = module.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let (plain, bytes) = unpack_module(&module, &file, read(&module)?)?;
        archive.add_file(&Path::new("/modules.d").join(&plain), &bytes);
        names.push_str(&format!("/modules.d/{plain}\n"));
    }
    archive.add_file(Path::new("/modules"), names.as_bytes());
    let lines: Vec<String> =
        loads.iter().map(|(name, words)| format!("{name} {}\n", words.join(" "))).collect();
    archive.add_file(Path::new("/loads"), lines.concat().as_bytes());
    archive.add_file(Path::new("/init"), INIT_SCRIPT.as_bytes());
    std::fs::write(to, archive.finish()).map_err(|why| Failure::new(format!("{}: {why}", to.display())))
}

/// Shared objects of a program; none of one that is linked statically.
fn shared_libraries(program: &Path) -> Vec<PathBuf> {
    let said = CommandLocation::Here.run(&["ldd", &program.display().to_string()]).unwrap_or_default();
    let path =
        |line: &str| line.split_ascii_whitespace().find(|word| word.starts_with('/')).map(PathBuf::from);
    said.lines().filter_map(path).collect()
}

/// A module as the guest's `insmod` takes it: not compressed.
fn unpack_module(path: &Path, file: &str, bytes: Vec<u8>) -> Result<(String, Vec<u8>), Failure> {
    let (program, plain) = match (file.strip_suffix(".xz"), file.strip_suffix(".zst")) {
        (Some(plain), _) => ("xz", plain),
        (_, Some(plain)) => ("zstd", plain),
        _ => return Ok((file.to_owned(), bytes)),
    };
    let failed =
        |why: &dyn std::fmt::Display| Failure::new(format!("{program} -dc {}: {why}", path.display()));
    let out =
        std::process::Command::new(program).arg("-dc").arg(path).output().map_err(|why| failed(&why))?;
    if !out.status.success() {
        return Err(failed(&String::from_utf8_lossy(&out.stderr)));
    }
    Ok((plain.to_owned(), out.stdout))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_come_behind_what_they_need() {
        let index = "kernel/a/virtio_blk.ko: kernel/v/virtio_ring.ko kernel/v/virtio.ko\n\
                     kernel/v/virtio-pci.ko.xz: kernel/v/virtio_ring.ko kernel/v/virtio.ko\nkernel/v/virtio.ko:\n";
        let got = modules_with_dependencies(index, "", &["virtio_pci", "virtio_blk"]).unwrap();
        let names: Vec<String> = got.iter().map(|file| module_name(file)).collect();
        assert_eq!(names, ["virtio", "virtio_ring", "virtio_pci", "virtio_blk"]);
        let got = modules_with_dependencies(index, "kernel/v/virtio_pci.ko\n", &["virtio_pci"]).unwrap();
        assert_eq!(got, Vec::<String>::new());
        assert!(modules_with_dependencies(index, "", &["nvme"]).unwrap_err().to_string().contains("nvme"));
    }

    /// Where there is no depmod it fails before that.
    #[test]
    fn the_systems_own_modules_are_never_written_to() {
        let root = tempfile::tempdir().unwrap();
        let version = "6.1.0-test".to_owned();
        let dir = root.path().join("lib/modules").join(&version);
        std::fs::create_dir_all(dir.join("kernel")).unwrap();
        std::fs::write(dir.join("modules.builtin"), "").unwrap();
        let kernel = GuestKernel { file: root.path().to_owned(), version, root: root.path().to_owned() };
        kernel.required_modules().unwrap_err();
        let left = std::fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().file_name());
        let mut left: Vec<_> = left.collect();
        left.sort();
        assert_eq!(left, ["kernel", "modules.builtin"]);
    }

    /// What is packed is what cpio finds in it.
    #[test]
    fn an_archive_is_read_back() {
        if !CommandLocation::Here.has_program("cpio") {
            eprintln!("not tried: cpio is missing");
            return;
        }
        let mut archive = CpioArchive::default();
        archive.add_file(Path::new("/usr/lib/x"), b"12345");
        archive.add_file(Path::new("/init"), b"#!");
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("archive");
        std::fs::write(&file, archive.finish()).unwrap();
        let script = format!(
            "cd '{0}' && cpio -idm --quiet <archive && cat usr/lib/x && ls -l init",
            dir.path().display()
        );
        let said = CommandLocation::Here.run(&["sh", "-c", &script]).unwrap();
        assert!(said.starts_with("12345-rwxr-xr-x"), "{said}");
    }

    #[test]
    fn what_is_missing_is_named() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(GuestKernel::find_under(dir.path()), None);
        std::fs::create_dir_all(dir.path().join("lib/modules/6.1.0-9/kernel")).unwrap();
        std::fs::create_dir_all(dir.path().join("boot")).unwrap();
        std::fs::write(dir.path().join("boot/vmlinuz-6.1.0-9"), b"").unwrap();
        std::fs::write(dir.path().join("boot/vmlinuz-6.0.0"), b"").unwrap();
        assert_eq!(GuestKernel::find_under(dir.path()).unwrap().version, "6.1.0-9");
    }
}
