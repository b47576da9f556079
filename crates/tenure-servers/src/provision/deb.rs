//! The contents of a bundle: its Debian packages, the changes after unpacking, and how its programs
//! run with the bundle's own loader and libraries, independent of those of the host.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Component, Path, PathBuf};
use std::process::Command;

use super::bundle::Bundle;
use super::newest::{self, Newest};

/// Must be raised when the changes after unpacking change.
const RECIPE: &str = "v1";

/// Lists of packages that several bundles need, and of those of one server.
const LIBC: &str = "libc6 libgcc-s1 libstdc++6";
const BOOKWORM: &str = "libssl3 zlib1g libsystemd0 libcap2 libgcrypt20 libgpg-error0 liblzma5 \
    libzstd1 liblz4-1";
const TRIXIE: &str = "libssl3t64 zlib1g libsystemd0 libcap2 libzstd1";
const MARIADB: &str = "mariadb-server-core libaio1 libnuma1 liburing2 libpcre2-8-0 libcrypt1";
const MYSQL: &str = "mysql-server-core libicu78 libssl3t64 libzstd1 libprotobuf-lite32t64 zlib1g \
    liblz4-1 libaio1t64 libnuma1 libgoogle-perftools4t64 libtcmalloc-minimal4t64 libxxhash0 \
    libunwind8 liblzma5";
// Not libllvm14, 104 MB: the server runs with jit=off.
const POSTGRES: &str = "postgresql-15 postgresql-client-15 libpq5 libxml2 libgssapi-krb5-2 \
    libldap-2.5-0 libicu72 libreadline8 libpam0g libaudit1 libcap-ng0 libkrb5-3 libk5crypto3 \
    libcom-err2 libkrb5support0 libkeyutils1 libsasl2-2 libtinfo6 libcrypt1 libgnutls30 \
    libp11-kit0 libidn2-0 libunistring2 libtasn1-6 libnettle8 libhogweed6 libgmp10 libffi8";

/// The folder whose links are made relative.
const JVM: &str = "usr/lib/jvm";

/// Folders that are removed after unpacking.
const PRUNED: [&str; 13] = [
    "lib/systemd",
    "usr/lib/mysql",
    "usr/lib/postgresql/15/lib/bitcode",
    "usr/lib/postgresql/18/lib/bitcode",
    "usr/lib/systemd",
    "usr/share/apport",
    "usr/share/bash-completion",
    "usr/share/bug",
    "usr/share/doc",
    "usr/share/lintian",
    "usr/share/locale",
    "usr/share/man",
    "usr/share/maven-repo",
];

/// The processor as Debian names it, and its loader.
#[cfg(target_arch = "x86_64")]
pub(super) const ARCH: &str = "amd64";
#[cfg(target_arch = "x86_64")]
const TRIPLET: &str = "x86_64-linux-gnu";
#[cfg(target_arch = "x86_64")]
const LOADER: &str = "ld-linux-x86-64.so.2";

/// The processor as Debian names it, and its loader.
#[cfg(target_arch = "aarch64")]
pub(super) const ARCH: &str = "arm64";
#[cfg(target_arch = "aarch64")]
const TRIPLET: &str = "aarch64-linux-gnu";
#[cfg(target_arch = "aarch64")]
const LOADER: &str = "ld-linux-aarch64.so.1";

/// On other processors nothing can be fetched; programs on PATH still run.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
pub(super) const ARCH: &str = "unknown";
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
const TRIPLET: &str = "unknown";
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
const LOADER: &str = "unknown";

/// The Debian release that has the required version.
pub(super) fn suite(bundle: Bundle) -> &'static str {
    match bundle {
        _ if Newest::from_env().concerns(bundle) => "sid",
        // The last release with Consul.
        Bundle::Consul => "bullseye",
        // No release has it. The names of sid's libraries change with time.
        Bundle::Mysql => "sid",
        Bundle::Etcd | Bundle::Redis8 | Bundle::Valkey => "trixie",
        _ => "bookworm",
    }
}

/// The packages: the server's own first, then those of all its libraries.
pub(super) fn packages(bundle: Bundle) -> Vec<&'static str> {
    let lists: &[&str] = match bundle {
        _ if Newest::from_env().concerns(bundle) => newest::packages(bundle).unwrap_or_default(),
        Bundle::Consul => &["consul libc6"],
        Bundle::Etcd => &["etcd-server etcd-client libc6"],
        Bundle::Jre => &["openjdk-17-jre-headless zlib1g", LIBC],
        Bundle::Mariadb => &[MARIADB, BOOKWORM, LIBC],
        Bundle::Mysql => &[MYSQL, LIBC],
        Bundle::Postgres => &[POSTGRES, BOOKWORM, LIBC],
        // The program is in the package of the tools; the package of the server has a link to it.
        Bundle::Redis => {
            &["redis-tools redis-server libatomic1 liblzf1 libjemalloc2", BOOKWORM, LIBC]
        }
        Bundle::Redis8 => {
            &["redis-tools redis-server libatomic1 liblzf1 libjemalloc2", TRIXIE, LIBC]
        }
        Bundle::Valkey => {
            &["valkey-tools valkey-server libatomic1 liblzf1 libjemalloc2", TRIXIE, LIBC]
        }
        Bundle::Zookeeper => {
            &["libzookeeper-java libslf4j-java libdropwizard-metrics-java libsnappy-java"]
        }
    };
    lists.iter().flat_map(|list| list.split_whitespace()).collect()
}

/// The path of the server's program in the bundle.
pub(super) fn program(bundle: Bundle) -> String {
    match bundle {
        Bundle::Consul => "usr/bin/consul".into(),
        Bundle::Etcd => "usr/bin/etcd".into(),
        Bundle::Jre => format!("usr/lib/jvm/java-17-openjdk-{ARCH}/bin/java"),
        Bundle::Mariadb => "usr/sbin/mariadbd".into(),
        Bundle::Mysql => "usr/sbin/mysqld".into(),
        Bundle::Postgres => format!("{}/postgres", postgres_bin()),
        Bundle::Redis | Bundle::Redis8 => "usr/bin/redis-server".into(),
        Bundle::Valkey => "usr/bin/valkey-server".into(),
        Bundle::Zookeeper => "usr/share/java/zookeeper.jar".into(),
    }
}

/// The folder of PostgreSQL's programs in the bundle.
fn postgres_bin() -> String {
    let newest = Newest::from_env().concerns(Bundle::Postgres);
    let major = if newest { newest::POSTGRES_MAJOR } else { "15" };
    format!("usr/lib/postgresql/{major}/bin")
}

/// A text that identifies the contents of a bundle. A bundle with another recipe is fetched again.
pub(super) fn recipe(bundle: Bundle) -> String {
    format!("{RECIPE} {ARCH} {} {}\n", suite(bundle), packages(bundle).join(" "))
}

/// The command line that runs `program` with the loader and the libraries of the bundle at `root`.
pub(super) fn argv(root: &Path, program: &Path, preload: Option<&Path>) -> Vec<OsString> {
    // Not `lib64/ld-linux…`: in bookworm that is an absolute link to the host's.
    let folders = [root.join("lib").join(TRIPLET), root.join("usr/lib").join(TRIPLET)];
    let loader = folders.iter().map(|folder| folder.join(LOADER)).find(|file| file.exists());
    let Some(loader) = loader else {
        return vec![program.into()];
    };
    let mut libraries = OsString::new();
    for folder in &folders {
        libraries.push(folder);
        libraries.push(":");
    }
    if let Some(home) = program.parent().and_then(Path::parent) {
        // Java finds its home by this library if the executable is the loader.
        libraries.push(home.join("lib"));
    }
    let mut argv: Vec<OsString> = vec![loader.into(), "--library-path".into(), libraries];
    if let Some(object) = preload {
        argv.extend(["--preload".into(), object.into()]);
    }
    // Bullseye's loader does not know --argv0, and Consul does not need it.
    if !program.ends_with("consul") {
        argv.extend(["--argv0".into(), program.into()]);
    }
    argv.push(real_program(program).into());
    argv
}

/// Unpacks every package, removes files that no server needs, and makes the bundle relocatable.
/// Returns the names of the packages, the server's own first.
pub(super) fn unpack(bundle: Bundle, packages: &Path, root: &Path) -> Result<Vec<String>, String> {
    let mut files = debs(packages).map_err(|error| format!("{}: {error}", packages.display()))?;
    let first = format!("{}_", self::packages(bundle)[0]);
    files.sort_by_key(|file| (!file_name(file).starts_with(&first), file.clone()));
    for file in &files {
        let output = Command::new("dpkg-deb").arg("-x").arg(file).arg(root).output();
        let output = output.map_err(|error| format!("dpkg-deb does not run: {error}"))?;
        if !output.status.success() {
            let reason = String::from_utf8_lossy(&output.stderr);
            return Err(format!("dpkg-deb -x {}: {}", file_name(file), reason.trim()));
        }
    }
    let prepared = prune(root).and_then(|()| match bundle {
        Bundle::Jre if is_inside(root, Path::new(JVM)) => relink(root, &root.join(JVM)),
        Bundle::Postgres if is_inside(root, Path::new(&postgres_bin())) => wrap_postgres(root),
        Bundle::Jre | Bundle::Postgres => Err(io::Error::other("its folders are links")),
        _ => Ok(()),
    });
    prepared.map_err(|error| format!("cannot prepare the bundle: {error}"))?;
    Ok(files.iter().map(|file| file_name(file)).collect())
}

fn debs(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "deb") {
            files.push(path);
        }
    }
    Ok(files)
}

fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// Removes documentation, translations and compiler intermediates: half of the disk space.
fn prune(root: &Path) -> io::Result<()> {
    let fixed = PRUNED.iter().map(PathBuf::from);
    let gconv = Path::new("usr/lib").join(TRIPLET).join("gconv");
    for path in fixed.chain([gconv]) {
        if is_inside(root, &path) {
            fs::remove_dir_all(root.join(path))?;
        }
    }
    Ok(())
}

/// Whether a path leads to a folder of the bundle without a link. A package may have `lib` as a
/// link to `/lib`, which would lead to the machine's own folder.
fn is_inside(root: &Path, path: &Path) -> bool {
    let mut folder = root.to_owned();
    path.components().all(|step| {
        folder.push(step);
        fs::symlink_metadata(&folder).is_ok_and(|facts| facts.is_dir())
    })
}

/// Makes absolute links relative, so that they stay inside the bundle: Debian's Java has links into
/// `/etc`.
fn relink(root: &Path, folder: &Path) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let kind = fs::symlink_metadata(&path)?.file_type();
        if kind.is_dir() {
            relink(root, &path)?;
        } else if kind.is_symlink() {
            let target = fs::read_link(&path)?;
            let Ok(inside) = target.strip_prefix("/") else { continue };
            let depth = path.strip_prefix(root).map_or(1, |path| path.components().count()) - 1;
            let up: PathBuf = std::iter::repeat_n(Component::ParentDir, depth).collect();
            fs::remove_file(&path)?;
            symlink(up.join(inside), &path)?;
        }
    }
    Ok(())
}

/// Replaces `postgres` by a script that runs it with the bundle's loader, because `initdb` executes
/// the `postgres` beside it. The script finds the bundle by its own path, so the bundle can be
/// moved.
fn wrap_postgres(root: &Path) -> io::Result<()> {
    let bin = postgres_bin();
    let program = root.join(&bin).join("postgres");
    fs::rename(&program, real_program(&program))?;
    let up = "../".repeat(Path::new(&bin).components().count());
    // Newer releases have nothing in `lib`.
    let loaders = ["lib", "usr/lib"].map(|lib| format!("{lib}/{TRIPLET}/{LOADER}"));
    let loader = loaders.iter().find(|loader| root.join(loader).exists()).unwrap_or(&loaders[0]);
    let script = format!(
        "#!/bin/sh\n\
         h=$(cd \"$(dirname \"$0\")\" && pwd) && r=$(cd \"$h/{up}\" && pwd) || exit 1\n\
         exec \"$r/{loader}\" \\\n  \
         --library-path \"$r/lib/{TRIPLET}:$r/usr/lib/{TRIPLET}\" \\\n  \
         --argv0 \"$h/postgres\" \"$h/postgres.bin\" \"$@\"\n"
    );
    fs::write(&program, script)?;
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755))
}

/// The real program behind such a script.
fn real_program(program: &Path) -> PathBuf {
    match program.file_name() {
        Some(name) if name == "postgres" => program.with_file_name("postgres.bin"),
        _ => program.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prune_does_not_follow_links_out_of_the_bundle() {
        let root = tempfile::tempdir().unwrap();
        let machine = tempfile::tempdir().unwrap();
        fs::create_dir_all(machine.path().join("systemd")).unwrap();
        fs::create_dir_all(root.path().join("usr/share/doc/x")).unwrap();
        symlink(machine.path(), root.path().join("lib")).unwrap();
        prune(root.path()).unwrap();
        assert!(machine.path().join("systemd").exists(), "the machine's own is gone");
        assert!(!root.path().join("usr/share/doc").exists());
    }
}
