//! What the guest consists of before there are tests in it: a kernel, its modules and a shell, from Debian's packages; tools
//! and libraries as this machine has them.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use super::cpio::Archive;
use crate::shell;

/// Names the newest kernel package. The kernel for clouds has no Soft-RoCE.
const KERNEL: &str = "linux-image-amd64";

/// The shell of the guest and its small tools.
const SHELL: &str = "busybox-static";

/// Modules that the tests want. What these need is found in them. The checksum of Soft-RoCE is asked for by name while it
/// runs, so no module says that it needs it.
const MODULES: [&str; 8] =
    ["crc32_generic", "crc32c_generic", "dummy", "veth", "sch_netem", "ib_uverbs", "rdma_ucm", "rdma_rxe"];

/// What makes networks and adapters, and loses packets.
const TOOLS: [&str; 3] = ["ip", "tc", "rdma"];

/// Where these tools may lie.
const FOLDERS: [&str; 4] = ["/usr/sbin", "/usr/bin", "/sbin", "/bin"];

/// First program of the guest.
const INIT: &str = include_str!("init");

/// A kernel and what belongs to it.
pub(super) struct Guest {
    folder: PathBuf,
    /// The package that the kernel is from.
    pub(super) kernel: String,
}

impl Guest {
    /// Finds the guest in `cache`, or makes it from packages. An error says what this machine lacks.
    pub(super) fn prepare(cache: &Path) -> Result<Self> {
        ensure!(cfg!(all(target_os = "linux", target_arch = "x86_64")), "the guest wants Linux on x86-64");
        let kernel = kernel_package()?;
        let guest = Self { folder: cache.join(&kernel), kernel };
        if !guest.folder.is_dir() {
            guest.make(cache).context("the guest's packages")?;
        }
        for tool in TOOLS {
            tool_path(tool)?;
        }
        Ok(guest)
    }

    /// File of the kernel.
    pub(super) fn kernel_file(&self) -> PathBuf {
        self.folder.join("vmlinuz")
    }

    /// Everything of the guest but its tests: modules in the order in which they are loaded, tools, the driver of Soft-RoCE.
    pub(super) fn archive(&self) -> Result<Archive> {
        let mut archive = Archive::default();
        archive.add("/init", INIT.as_bytes());
        archive.add("/etc/hosts", b"127.0.0.1 localhost guest\n");
        archive.copy(&self.folder.join("busybox"), "/busybox")?;
        for module in files(&self.folder.join("modules"))? {
            let name = module.file_name().context("a file has a name")?.to_string_lossy().into_owned();
            archive.copy(&module, &format!("/modules/{name}"))?;
        }
        let mut programs = Vec::new();
        for tool in TOOLS {
            let path = tool_path(tool)?;
            archive.copy(&path, &format!("/tools/{tool}"))?;
            programs.push(path);
        }
        let driver = soft_roce_driver()?;
        archive.copy(&driver, &driver.to_string_lossy())?;
        archive.copy(Path::new("/etc/libibverbs.d/rxe.driver"), "/etc/libibverbs.d/rxe.driver")?;
        programs.push(driver);
        add_libraries(&mut archive, &programs)?;
        Ok(archive)
    }

    // Complete or not there: it gets its name when it is done.
    fn make(&self, cache: &Path) -> Result<()> {
        let work = shell::temp_dir("rdma-vm")?;
        let (debs, root, made) = (work.path().join("debs"), work.path().join("root"), cache.join("new"));
        fs::create_dir_all(&debs)?;
        let mut download = Command::new("apt-get");
        download.args(["download", "-q", &self.kernel, SHELL]).current_dir(&debs);
        shell::read(&mut download)?;
        for deb in files(&debs)? {
            shell::read(Command::new("dpkg-deb").arg("-x").arg(&deb).arg(&root))?;
        }
        // Of one that was interrupted.
        if made.exists() {
            fs::remove_dir_all(&made)?;
        }
        fs::create_dir_all(made.join("modules"))?;
        let boot = files(&root.join("boot"))?;
        let vmlinuz = boot.iter().find(|path| path.to_string_lossy().contains("/vmlinuz-"));
        fs::copy(vmlinuz.context("the kernel's package has no vmlinuz")?, made.join("vmlinuz"))?;
        fs::copy(root.join("bin/busybox"), made.join("busybox")).context("busybox")?;
        let mut modules = BTreeMap::new();
        find_modules(&root.join("lib/modules"), &mut modules)?;
        for (number, name) in in_order(&modules)?.iter().enumerate() {
            fs::copy(&modules[name], made.join(format!("modules/{number:02}-{name}.ko")))?;
        }
        fs::rename(&made, &self.folder)?;
        Ok(())
    }
}

/// Adds the libraries that these programs are linked to, each where the program looks for it.
pub(super) fn add_libraries(archive: &mut Archive, programs: &[PathBuf]) -> Result<()> {
    for library in libraries(programs)? {
        archive.copy(Path::new(&library), &library)?;
    }
    Ok(())
}

// Each once; a program may be linked to what another one is linked to.
fn libraries(programs: &[PathBuf]) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for program in programs {
        let said = shell::read(Command::new("ldd").arg(program))?;
        for line in said.lines() {
            ensure!(!line.contains("not found"), "{}: {}", program.display(), line.trim());
            // `libm.so.6 => /lib/x86_64-linux-gnu/libm.so.6 (0x…)`, or the loader with its path alone.
            found.extend(line.split_whitespace().find(|word| word.starts_with('/')).map(str::to_owned));
        }
    }
    found.sort();
    found.dedup();
    Ok(found)
}

fn kernel_package() -> Result<String> {
    let said = shell::read(Command::new("apt-cache").args(["depends", KERNEL]))?;
    let named = said.lines().find_map(|line| line.trim().strip_prefix("Depends: "));
    named.map(str::to_owned).with_context(|| format!("apt knows no kernel under the name {KERNEL}"))
}

fn tool_path(tool: &str) -> Result<PathBuf> {
    let paths = FOLDERS.iter().map(|folder| Path::new(folder).join(tool));
    paths.into_iter().find(|path| path.is_file()).with_context(|| format!("no `{tool}`: install iproute2"))
}

fn soft_roce_driver() -> Result<PathBuf> {
    let library = libraries(&[tool_path("ip")?])?.into_iter().find(|path| path.contains("/libc.so"));
    let library = library.context("ip is linked to no libc")?;
    // The libraries of this machine's kind lie in one folder, under /usr.
    let folder = Path::new(&library).parent().context("a library lies in a folder")?;
    let folder = Path::new("/usr").join(folder.strip_prefix("/").unwrap_or(folder)).join("libibverbs");
    let drivers = files(&folder).context("install ibverbs-providers")?;
    let driver = drivers.into_iter().find(|path| path.to_string_lossy().contains("/librxe-"));
    driver.context("install ibverbs-providers: no librxe")
}

fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))? {
        files.push(entry?.path());
    }
    files.sort();
    Ok(files)
}

fn find_modules(folder: &Path, modules: &mut BTreeMap<String, PathBuf>) -> Result<()> {
    for path in files(folder)? {
        if path.is_symlink() {
            continue;
        }
        if path.is_dir() {
            find_modules(&path, modules)?;
        } else if let Some(name) = path.file_name().and_then(|name| name.to_str()?.strip_suffix(".ko")) {
            modules.insert(name.replace('-', "_"), path);
        }
    }
    Ok(())
}

// Those that are wanted, each after what it needs.
fn in_order(modules: &BTreeMap<String, PathBuf>) -> Result<Vec<String>> {
    fn add(name: &str, modules: &BTreeMap<String, PathBuf>, order: &mut Vec<String>) -> Result<()> {
        let name = name.replace('-', "_");
        if order.contains(&name) {
            return Ok(());
        }
        let Some(path) = modules.get(&name) else { bail!("the kernel has no module {name}") };
        for needed in needs(&fs::read(path)?) {
            add(&needed, modules, order)?;
        }
        order.push(name);
        Ok(())
    }
    let mut order = Vec::new();
    for name in MODULES {
        add(name, modules, &mut order)?;
    }
    Ok(order)
}

// A module has a line `depends=a,b` among others that end with 0.
fn needs(module: &[u8]) -> Vec<String> {
    const LINE: &[u8] = b"\0depends=";
    let Some(at) = module.windows(LINE.len()).position(|window| window == LINE) else { return Vec::new() };
    let rest = &module[at + LINE.len()..];
    let line = rest.split(|byte| *byte == 0).next().unwrap_or_default();
    let names = String::from_utf8_lossy(line);
    names.split(',').filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_module_comes_after_all_that_it_needs_and_one_that_is_missing_is_named() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut modules = BTreeMap::new();
        let mut module = |name: &str, needs: &str| {
            let path = folder.path().join(name);
            fs::write(&path, format!("ELF\0license=GPL\0depends={needs}\0name={name}\0")).expect("a file");
            modules.insert(name.to_owned(), path);
        };
        for name in MODULES {
            module(name, "");
        }
        module("rdma_rxe", "ib_uverbs,udp-tunnel");
        module("udp_tunnel", "ib_core");
        let missing = in_order(&modules).expect_err("ib_core is not there");
        assert_eq!(missing.to_string(), "the kernel has no module ib_core");
        fs::write(folder.path().join("ib_core"), b"nothing about needs").expect("a file");
        modules.insert("ib_core".to_owned(), folder.path().join("ib_core"));
        let order = in_order(&modules).expect("all are there");
        assert_eq!(order.len(), MODULES.len() + 2);
        assert_eq!(order[order.len() - 3..], ["ib_core", "udp_tunnel", "rdma_rxe"]);
    }
}
