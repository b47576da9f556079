//! A private apt: its own lists, cache and sources in the cache folder, so that any user can
//! download packages and the machine's own apt is not changed. apt checks the signatures of the
//! indexes and the hash of every package.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant, SystemTime};

use super::bundle::{Bundle, lock_file, megabytes, report};
use super::{deb, mirror, trusted_dir};
use crate::process::{Launch, tail};

const OPTIONS: &[&str] = &[
    "-q",
    "-oAPT::Get::AllowUnauthenticated=false",
    "-oAPT::Get::Allow-Downgrades=false",
    "-oAPT::Get::Force-Yes=false",
    "-oAcquire::AllowInsecureRepositories=false",
    "-oAcquire::AllowWeakRepositories=false",
    "-oAcquire::AllowDowngradeToInsecureRepositories=false",
    "-oAcquire::Check-Date=true",
    "-oAcquire::https::Verify-Peer=true",
    "-oAcquire::https::Verify-Host=true",
    // This crate locks files itself; apt's own locks need root.
    "-oDebug::NoLocking=true",
    "-oAPT::Sandbox::User=",
    "-oAcquire::Languages=none",
    "-oAcquire::GzipIndexes=true",
    // This crate retries itself, depending on the error.
    "-oAcquire::Retries=0",
    "-oAcquire::http::Timeout=20",
    "-oAcquire::https::Timeout=20",
    // Otherwise an update that failed in part counts as done.
    "-oAPT::Update::Error-Mode=any",
    "-oAcquire::IndexTargets::deb::DEP-11::DefaultEnabled=false",
    "-oAcquire::IndexTargets::deb::Contents-deb::DefaultEnabled=false",
];
const PROXIES: [&str; 6] =
    ["http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"];
/// The release whose indexes may be expired.
const FROZEN: &str = "bullseye";
/// The suite whose indexes are valid for a week. A mirror that is a snapshot is often older, and
/// its indexes are signed as well, so they are accepted for 60 days, in seconds.
const ROLLING: &str = "sid";
const ROLLING_AGE: u32 = 60 * 24 * 60 * 60;
const LISTS_MAX_AGE: Duration = Duration::from_secs(24 * 60 * 60);
const PAUSE_LIMIT: Duration = Duration::from_secs(32);
const APT_LIMIT: Duration = Duration::from_secs(900);

/// Downloads the packages of a bundle into `folder`. Returns their size in bytes.
pub(super) fn download(bundle: Bundle, folder: &Path) -> Result<u64, String> {
    let apt = Apt::set_up(bundle)?;
    let packages = deb::packages(bundle);
    apt.update_if_older(LISTS_MAX_AGE)?;
    let total = match apt.size(&packages, folder) {
        Ok(total) => total,
        // The lists may be of another mirror, or older than the packages that it still has.
        Err(_) => {
            apt.update_if_older(Duration::ZERO)?;
            apt.size(&packages, folder)?
        }
    };
    report(bundle, &format!("downloading {} packages, {}", packages.len(), megabytes(total)));
    let arguments = ["download"].into_iter().chain(packages.iter().copied());
    let arguments: Vec<&str> = arguments.collect();
    if apt.run(&arguments, folder, Some(total)).is_err() {
        apt.update_if_older(Duration::ZERO)?;
        apt.run(&arguments, folder, Some(total))?;
    }
    Ok(total)
}

struct Apt {
    bundle: Bundle,
    home: PathBuf,
}

impl Apt {
    fn set_up(bundle: Bundle) -> Result<Self, String> {
        if deb::ARCH == "unknown" {
            return Err("no server on PATH, and no packages for this processor".into());
        }
        let suite = deb::suite(bundle);
        let sources = mirror::sources(suite)?;
        let home = trusted_dir()?.join("apt").join(suite);
        let show = |error| format!("{}: {error}", home.display());
        for folder in ["state/lists/partial", "cache/archives/partial", "empty"] {
            fs::create_dir_all(home.join(folder)).map_err(show)?;
        }
        let _lock = lock_lists(&home)?;
        let keyring = mirror::keyring(&home)?;
        if keyring.to_string_lossy().contains(char::is_whitespace) {
            // A list of sources cannot contain such a path.
            return Err(format!("`{}` has a blank in it: choose another", keyring.display()));
        }
        let lines = sources.iter().map(|(address, suite)| {
            let keyring = keyring.display();
            format!("deb [arch={} signed-by={keyring}] {address} {suite} main\n", deb::ARCH)
        });
        let lines: String = lines.collect();
        if fs::read_to_string(home.join("sources.list")).ok().as_ref() != Some(&lines) {
            // Lists of other sources must be fetched again.
            drop(fs::remove_file(home.join("updated")));
            fs::write(home.join("sources.list"), lines).map_err(show)?;
        }
        fs::write(home.join("status"), "").map_err(show)?;
        fs::write(home.join("apt.conf"), configuration(&home)).map_err(show)?;
        Ok(Self { bundle, home })
    }

    fn update_if_older(&self, limit: Duration) -> Result<(), String> {
        // A failure is remembered: otherwise, without a network, each server would wait for the
        // same timeout.
        static FAILED: Mutex<BTreeMap<&str, String>> = Mutex::new(BTreeMap::new());

        let suite = deb::suite(self.bundle);
        let mut failed = FAILED.lock().unwrap_or_else(|poison| poison.into_inner());
        if let Some(reason) = failed.get(suite) {
            return Err(reason.clone());
        }
        self.update(limit).inspect_err(|reason| {
            failed.insert(suite, reason.clone());
        })
    }

    fn update(&self, limit: Duration) -> Result<(), String> {
        let requested = SystemTime::now();
        let _lock = lock_lists(&self.home)?;
        let stamp = self.home.join("updated");
        let written = fs::metadata(&stamp).and_then(|meta| meta.modified());
        if let Ok(written) = written
            // The process that had the lock before may just have updated the lists.
            && (written > requested || written.elapsed().is_ok_and(|age| age < limit))
        {
            return Ok(());
        }
        report(
            self.bundle,
            &format!("requesting the package lists of {}", deb::suite(self.bundle)),
        );
        self.run(&["update"], &self.home, None)?;
        fs::write(&stamp, "").map_err(|error| format!("{}: {error}", stamp.display()))
    }

    /// The size of the packages, in bytes.
    fn size(&self, packages: &[&str], folder: &Path) -> Result<u64, String> {
        let arguments = ["download", "--print-uris"].into_iter().chain(packages.iter().copied());
        let output = self.run(&arguments.collect::<Vec<_>>(), folder, None)?;
        // 'address' file-name size hash
        let sizes = output.lines().filter(|line| line.starts_with('\''));
        let sizes: Vec<u64> =
            sizes.filter_map(|line| line.split_whitespace().nth(2)?.parse().ok()).collect();
        if sizes.len() != packages.len() {
            return Err(format!("the mirror lacks some of {}", packages.join(" ")));
        }
        Ok(sizes.iter().sum())
    }

    /// Runs apt-get. Retries with growing pauses while the mirror reports too many requests.
    fn run(&self, arguments: &[&str], folder: &Path, total: Option<u64>) -> Result<String, String> {
        let mut pause = Duration::from_secs(2);
        loop {
            match self.run_once(arguments, folder, total) {
                Err(reason) if is_busy(&reason) && pause <= PAUSE_LIMIT => {
                    let seconds = pause.as_secs();
                    report(self.bundle, &format!("the mirror is busy; next try in {seconds} s"));
                    std::thread::sleep(pause);
                    pause *= 2;
                }
                result => return result,
            }
        }
    }

    fn run_once(
        &self,
        arguments: &[&str],
        folder: &Path,
        total: Option<u64>,
    ) -> Result<String, String> {
        let log = folder.join("apt.log");
        drop(fs::remove_file(&log));
        let suite = deb::suite(self.bundle);
        let fresh = format!("-oAcquire::Check-Valid-Until={}", suite != FROZEN);
        let age = if suite == ROLLING { ROLLING_AGE } else { 0 };
        let age = format!("-oAcquire::Min-ValidTime={age}");
        let options = ["apt-get", &fresh, &age].into_iter().chain(OPTIONS.iter().copied());
        let argv = options.chain(arguments.iter().copied()).map(Into::into).collect();
        let mut launch = Launch::new(argv, folder, log.clone());
        launch.env = vec![("APT_CONFIG".into(), self.home.join("apt.conf").into())];
        launch.env.extend(
            PROXIES
                .iter()
                .filter_map(|name| std::env::var_os(name).map(|value| (name.into(), value))),
        );
        let mut process = launch.spawn().map_err(|error| format!("apt-get: {error}"))?;
        let start = Instant::now();
        let status = loop {
            if let Some(status) = process.wait(Duration::from_secs(2)) {
                break status;
            }
            if let Some(total) = total {
                let done = megabytes(bytes_in(folder).min(total));
                report(self.bundle, &format!("{done} of {}", megabytes(total)));
            }
            if start.elapsed() > APT_LIMIT {
                return Err(format!("apt-get was not done after {APT_LIMIT:?}"));
            }
        };
        let output = fs::read_to_string(&log).unwrap_or_default();
        if status.success() {
            Ok(output)
        } else {
            Err(apt_errors(&output).unwrap_or_else(|| tail(&log, 5)))
        }
    }
}

/// Waits until no other process changes these lists. The lock is held until the file is dropped.
fn lock_lists(home: &Path) -> Result<File, String> {
    let lock = lock_file(&home.join("lock"))?;
    lock.lock().map_err(|error| format!("{}: {error}", home.display()))?;
    Ok(lock)
}

/// The errors that apt reports, in one line.
fn apt_errors(output: &str) -> Option<String> {
    let lines = output.lines().filter_map(|line| line.strip_prefix("E: "));
    // Without the one that only follows from the others.
    let mut lines: Vec<&str> = lines.filter(|line| !line.starts_with("Some index files")).collect();
    lines.dedup();
    (!lines.is_empty()).then(|| lines.join("; "))
}

fn is_busy(reason: &str) -> bool {
    ["429", "Too Many Requests", "503  Service Unavailable"]
        .iter()
        .any(|sign| reason.contains(sign))
}

fn bytes_in(folder: &Path) -> u64 {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.metadata().ok()).map(|meta| meta.len()).sum()
}

/// The private configuration. apt reads the machine's own configuration before it, so that its
/// proxies are used. Settings that would make apt less strict are reverted by [`OPTIONS`], which
/// come last.
fn configuration(home: &Path) -> String {
    let home = home.display();
    let arch = deb::ARCH;
    format!(
        "APT::Architecture \"{arch}\";\n\
         APT::Architectures {{ \"{arch}\"; }};\n\
         Dir::State \"{home}/state\";\n\
         Dir::State::status \"{home}/status\";\n\
         Dir::Cache \"{home}/cache\";\n\
         Dir::Cache::pkgcache \"\";\n\
         Dir::Cache::srcpkgcache \"\";\n\
         Dir::Etc::sourcelist \"{home}/sources.list\";\n\
         Dir::Etc::sourceparts \"{home}/empty\";\n\
         Dir::Etc::preferences \"{home}/none\";\n\
         Dir::Etc::preferencesparts \"{home}/empty\";\n"
    )
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::{OPTIONS, apt_errors, is_busy};

    #[test]
    fn weak_settings_of_the_machine_are_reverted() {
        let names = [
            "Acquire::AllowInsecureRepositories",
            "Acquire::AllowWeakRepositories",
            "Acquire::AllowDowngradeToInsecureRepositories",
            "APT::Get::AllowUnauthenticated",
        ];
        let weak = tempfile::NamedTempFile::new().unwrap();
        let lines: String = names.iter().map(|name| format!("{name} \"true\";\n")).collect();
        std::fs::write(weak.path(), lines).unwrap();
        let dump = |options: &[&str]| {
            let mut command = Command::new("apt-config");
            command.env("APT_CONFIG", weak.path()).arg("dump").args(options).args(names);
            let output = command.output().ok()?;
            Some(String::from_utf8_lossy(&output.stdout).into_owned())
        };
        let Some(before) = dump(&[]) else { return eprintln!("there is no apt here") };
        assert!(before.contains("AllowInsecureRepositories \"true\""), "{before}");
        let settings: Vec<&str> =
            OPTIONS.iter().copied().filter(|option| option.starts_with("-o")).collect();
        let after = dump(&settings).unwrap();
        for name in names {
            assert!(after.contains(&format!("{name} \"false\";")), "{name}: {after}");
        }
    }

    #[test]
    fn only_a_busy_mirror_is_retried() {
        assert!(is_busy("Failed to fetch m://x  429  Too Many Requests [IP: 127.0.0.1 80]"));
        assert!(!is_busy("Could not connect to 127.0.0.1:1 (127.0.0.1). - connect (111)"));
    }

    #[test]
    fn the_reason_is_the_error_that_apt_reports() {
        let output = "Get:1 m://x bookworm\nE: Unable to locate package a\n\
                      E: Some index files failed to download.\n";
        let reason = apt_errors(output);
        assert_eq!(reason.as_deref(), Some("Unable to locate package a"));
    }
}
