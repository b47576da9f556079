//! A private apt: its own lists, cache and sources in the cache folder, so that any user can fetch
//! and the machine's own apt is not touched. apt checks the signatures of the indexes and the hash
//! of every package.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant, SystemTime};

use super::bundle::{Bundle, lock_file, megabytes, say};
use super::{deb, mirror, trusted_dir};
use crate::process::{Launch, tail};

/// Downloads the packages of a bundle into `folder`; returns their size in bytes.
pub(super) fn download(bundle: Bundle, folder: &Path) -> Result<u64, String> {
    let apt = Apt::set_up(bundle)?;
    let packages = deb::packages(bundle);
    apt.update_if_older(LISTS_LAST)?;
    let total = match apt.size(&packages, folder) {
        Ok(total) => total,
        // The lists may be of another mirror, or older than what it still has.
        Err(_) => {
            apt.update_if_older(Duration::ZERO)?;
            apt.size(&packages, folder)?
        }
    };
    say(bundle, &format!("downloading {} packages, {}", packages.len(), megabytes(total)));
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
        let _turn = turn(&home)?;
        let keyring = mirror::keyring(&home)?;
        if keyring.to_string_lossy().contains(char::is_whitespace) {
            // apt has no way to write such a path in a list of sources.
            return Err(format!("`{}` has a blank in it: choose another", keyring.display()));
        }
        let lines = sources.iter().map(|(address, suite)| {
            let keyring = keyring.display();
            format!("deb [arch={} signed-by={keyring}] {address} {suite} main\n", deb::ARCH)
        });
        let lines: String = lines.collect();
        if fs::read_to_string(home.join("sources.list")).ok().as_ref() != Some(&lines) {
            // Other sources: the lists are not theirs.
            drop(fs::remove_file(home.join("updated")));
            fs::write(home.join("sources.list"), lines).map_err(show)?;
        }
        fs::write(home.join("status"), "").map_err(show)?;
        fs::write(home.join("apt.conf"), configuration(&home)).map_err(show)?;
        Ok(Self { bundle, home })
    }

    fn update_if_older(&self, limit: Duration) -> Result<(), String> {
        // A failure is remembered: without a network each server would wait for the same time-out.
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
        let asked = SystemTime::now();
        let _turn = turn(&self.home)?;
        let stamp = self.home.join("updated");
        let written = fs::metadata(&stamp).and_then(|meta| meta.modified());
        if let Ok(written) = written
            // Whoever had the turn before us may just have done it.
            && (written > asked || written.elapsed().is_ok_and(|age| age < limit))
        {
            return Ok(());
        }
        say(self.bundle, &format!("asking the mirror what {} has", deb::suite(self.bundle)));
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
        match sizes.len() == packages.len() {
            true => Ok(sizes.iter().sum()),
            false => Err(format!("the mirror lacks some of {}", packages.join(" "))),
        }
    }

    /// Runs apt-get, again and ever later while the mirror says that it is asked too often.
    fn run(&self, arguments: &[&str], folder: &Path, total: Option<u64>) -> Result<String, String> {
        let mut pause = Duration::from_secs(2);
        loop {
            match self.run_once(arguments, folder, total) {
                Err(reason) if is_busy(&reason) && pause <= PAUSE_LONGEST => {
                    let seconds = pause.as_secs();
                    say(self.bundle, &format!("the mirror is busy; next try in {seconds} s"));
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
                say(self.bundle, &format!("{done} of {}", megabytes(total)));
            }
            if start.elapsed() > APT_LONGEST {
                return Err(format!("apt-get was not done after {APT_LONGEST:?}"));
            }
        };
        let output = fs::read_to_string(&log).unwrap_or_default();
        match status.success() {
            true => Ok(output),
            false => Err(complaint(&output).unwrap_or_else(|| tail(&log, 5))),
        }
    }
}

/// Waits until no other process works on these lists; lasts until the file is dropped.
fn turn(home: &Path) -> Result<File, String> {
    let lock = lock_file(&home.join("lock"))?;
    lock.lock().map_err(|error| format!("{}: {error}", home.display()))?;
    Ok(lock)
}

/// apt's errors, in one line.
fn complaint(output: &str) -> Option<String> {
    let lines = output.lines().filter_map(|line| line.strip_prefix("E: "));
    // What follows from the others and says nothing new.
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

/// apt reads the machine's own configuration first, so that its proxies stay in force. What of it
/// would make apt less strict is taken back by [`OPTIONS`], which come last.
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
    // Our own lock files keep processes apart; apt's would want root.
    "-oDebug::NoLocking=true",
    "-oAPT::Sandbox::User=",
    "-oAcquire::Languages=none",
    "-oAcquire::GzipIndexes=true",
    // Waiting and asking again is ours to decide, by the reason.
    "-oAcquire::Retries=0",
    "-oAcquire::http::Timeout=20",
    "-oAcquire::https::Timeout=20",
    // Else an update of which half has failed counts as done.
    "-oAPT::Update::Error-Mode=any",
    "-oAcquire::IndexTargets::deb::DEP-11::DefaultEnabled=false",
    "-oAcquire::IndexTargets::deb::Contents-deb::DefaultEnabled=false",
];

const PROXIES: [&str; 6] =
    ["http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"];

/// A release whose indexes may be older than they say that they are good for.
const FROZEN: &str = "bullseye";
/// The suite whose indexes are valid for a week. A mirror that is a snapshot is often older, and
/// what it has is signed all the same: for so many seconds, 60 days, that is borne.
const ROLLING: &str = "sid";
const ROLLING_AGE: u32 = 60 * 24 * 60 * 60;

const LISTS_LAST: Duration = Duration::from_secs(24 * 60 * 60);
const PAUSE_LONGEST: Duration = Duration::from_secs(32);
const APT_LONGEST: Duration = Duration::from_secs(900);

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::{OPTIONS, complaint, is_busy};

    #[test]
    fn what_the_machine_lets_pass_is_taken_back() {
        let names = [
            "Acquire::AllowInsecureRepositories",
            "Acquire::AllowWeakRepositories",
            "Acquire::AllowDowngradeToInsecureRepositories",
            "APT::Get::AllowUnauthenticated",
        ];
        let weak = tempfile::NamedTempFile::new().unwrap();
        let lines: String = names.iter().map(|name| format!("{name} \"true\";\n")).collect();
        std::fs::write(weak.path(), lines).unwrap();
        let asked = |options: &[&str]| {
            let mut command = Command::new("apt-config");
            command.env("APT_CONFIG", weak.path()).arg("dump").args(options).args(names);
            let said = command.output().ok()?;
            Some(String::from_utf8_lossy(&said.stdout).into_owned())
        };
        let Some(before) = asked(&[]) else { return eprintln!("there is no apt here") };
        assert!(before.contains("AllowInsecureRepositories \"true\""), "{before}");
        let settings: Vec<&str> =
            OPTIONS.iter().copied().filter(|option| option.starts_with("-o")).collect();
        let after = asked(&settings).unwrap();
        for name in names {
            assert!(after.contains(&format!("{name} \"false\";")), "{name}: {after}");
        }
    }

    #[test]
    fn only_a_busy_mirror_is_asked_again() {
        assert!(is_busy("Failed to fetch m://x  429  Too Many Requests [IP: 127.0.0.1 80]"));
        assert!(!is_busy("Could not connect to 127.0.0.1:1 (127.0.0.1). - connect (111)"));
    }

    #[test]
    fn the_reason_is_what_apt_complains_of() {
        let output = "Get:1 m://x bookworm\nE: Unable to locate package a\n\
                      E: Some index files failed to download.\n";
        let reason = complaint(output);
        assert_eq!(reason.as_deref(), Some("Unable to locate package a"));
    }
}
