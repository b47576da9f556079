//! Which store a lock lives in: what a command knows of it, the files that name it, and how far it
//! has to reach. A lock in the wrong store would exclude no other client, without an error.

#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "what fails here fails the test")]

mod support;

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use support::terminal::Terminal;
use support::*;

const PROGRAM: &str = env!("CARGO_BIN_EXE_tenure");

/// A script that lists, from inside a `run`, the locks of the store that it finds by itself.
const INNER: &str = "exec \"$0\" ls --json";

fn set_mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

/// Makes a folder for `XDG_CONFIG_HOME` with this text in its file, and returns the file.
fn configured(store: &Store, text: &str) -> PathBuf {
    let file = store.folder.path().join("config/tenure/url");
    std::fs::create_dir_all(file.parent().unwrap()).unwrap();
    std::fs::write(&file, text).unwrap();
    set_mode(file.parent().unwrap(), 0o755);
    set_mode(&file, 0o600);
    file
}

/// The program without a URL, with that folder.
fn by_file(store: &Store, args: &[&str]) -> Command {
    let mut command = tenure(args.iter().copied());
    command.env("XDG_CONFIG_HOME", store.folder.path().join("config"));
    command.env("XDG_STATE_HOME", store.folder.path().join("state"));
    command
}

#[test]
fn a_tenure_inside_a_run_locks_in_the_same_store() {
    let store = Store::new();
    let url = store.url();
    configured(&store, &url);
    let command = ["run", "outer", "--", "sh", "-c", INNER, PROGRAM];
    let by_flag = tenure(["--url", &url].into_iter().chain(command));
    let by_environment = store.tenure(command);
    for mut run in [by_flag, by_environment, by_file(&store, &command)] {
        let output = output(&mut run);
        assert_eq!(code(&output), 0, "{output:?}");
        assert!(text(&output.stdout).contains("\"outer\""), "{output:?}");
    }
}

#[test]
fn a_tenure_inside_a_run_finds_the_store_from_another_folder() {
    let store = Store::new();
    let folder = store.folder.path().join("100% mine?");
    std::fs::create_dir(&folder).unwrap();
    let script = format!("cd / && {INNER}");
    let mut run =
        tenure(["--url", "sqlite:a.db?ttl=9s", "run", "outer", "--", "sh", "-c", &script, PROGRAM]);
    let output = output(run.current_dir(&folder));
    assert!(text(&output.stdout).contains("\"outer\""), "{output:?}");
}

#[test]
fn a_url_that_was_withheld_is_refused_by_every_verb() {
    for args in [
        &["run", "k", "--", "true"][..],
        &["ls"],
        &["show", "k"],
        &["wait", "k"],
        &["evict", "k", "--token", "1"],
        &["doctor"],
    ] {
        let output = output(tenure(args.iter().copied()).env("TENURE_URL", "withheld:"));
        let messages = text(&output.stderr);
        assert_eq!(code(&output), 64, "{args:?}: {messages}");
        assert!(messages.contains("because of its password"), "{args:?}: {messages}");
        assert!(
            messages.contains("password_file=") && messages.contains("--url"),
            "{args:?}: {messages}"
        );
    }
    assert_eq!(code(&output(tenure(["help"]).env("TENURE_URL", "withheld:"))), 0);
}

#[test]
fn a_file_names_the_store_where_nothing_else_does() {
    let store = Store::new();
    configured(&store, &format!("# the locks of the shop\n\n  {}\n", store.url()));
    let named = || output(&mut by_file(&store, &["run", "k", "--", "echo", "ran"]));
    let first = named();
    assert_eq!((text(&first.stdout), text(&first.stderr)), ("ran\n".into(), String::new()));
    assert!(store.folder.path().join("locks.db").exists());
    assert!(!store.folder.path().join("state").exists(), "not the default store");

    // Also below the home folder.
    std::fs::rename(store.folder.path().join("config"), store.folder.path().join(".config"))
        .unwrap();
    let mut by_home = by_file(&store, &["doctor"]);
    by_home.env_remove("XDG_CONFIG_HOME").env("HOME", store.folder.path());
    assert!(text(&output(&mut by_home).stdout).contains("locks.db"));
}

#[test]
fn flag_and_environment_come_before_a_file() {
    let store = Store::new();
    configured(&store, "foo:");
    let args = ["run", "k", "--", "true"];
    assert_eq!(code(&output(&mut by_file(&store, &args))), 64);
    assert_eq!(code(&output(by_file(&store, &args).env("TENURE_URL", ""))), 64, "empty is none");
    assert_eq!(code(&output(by_file(&store, &args).env("TENURE_URL", store.url()))), 0);
    let url = store.url();
    let by_flag = ["--url", &url].into_iter().chain(args).collect::<Vec<_>>();
    assert_eq!(code(&output(by_file(&store, &by_flag).env("TENURE_URL", "foo:"))), 0);
    assert_eq!(code(&output(&mut by_file(&store, &["help"]))), 0, "help needs no store");
}

/// Runs a script where `/etc` is empty and may be written, if this machine allows that.
fn with_own_etc(store: &Store, script: &str) -> Option<std::process::Output> {
    let isolated = |flags: &str| {
        let mut command = Command::new("unshare");
        command.args([flags, "sh", "-ec"]);
        command.env_remove("TENURE_URL").env_remove("TENURE_REACH");
        command.env("XDG_STATE_HOME", store.folder.path().join("state"));
        command.env("XDG_CONFIG_HOME", store.folder.path().join("config"));
        command
    };
    let mount = "mount -t tmpfs none /etc; mkdir /etc/tenure; chmod 755 /etc/tenure;";
    let works = |flags: &&&str| {
        let tried = isolated(flags).arg(mount).output();
        tried.is_ok_and(|output| output.status.success())
    };
    let Some(flags) = ["-m", "-Urm"].iter().find(works) else {
        eprintln!("skipped: this machine gives no mount namespace");
        return None;
    };
    let script = format!("{mount} umask 022; {script}");
    Some(output(isolated(flags).args([&script, PROGRAM, &store.url()])))
}

#[test]
fn the_users_file_comes_before_the_systems() {
    let store = Store::new();
    let Some(found) = with_own_etc(&store, "echo $1 >/etc/tenure/url; $0 run k -- echo ran") else {
        return;
    };
    assert_eq!(text(&found.stdout), "ran\n", "{found:?}");
    assert_eq!(text(&found.stderr), "", "it is not the default store: {found:?}");
    assert!(store.folder.path().join("locks.db").exists());
    configured(&store, "foo:");
    let both = with_own_etc(&store, "echo $1 >/etc/tenure/url; $0 run k -- echo ran").unwrap();
    assert!(text(&both.stderr).contains("unknown scheme `foo`"), "{both:?}");
    let none = with_own_etc(&store, "rm -r $XDG_CONFIG_HOME; $0 run k -- echo ran").unwrap();
    assert!(text(&none.stderr).contains("this machine only"), "{none:?}");
}

/// This file is refused with that code, and the message names it and says why.
fn refused(store: &Store, wanted: i32, part: &str) {
    let output = output(&mut by_file(store, &["run", "k", "--", "echo", "ran"]));
    let messages = text(&output.stderr);
    assert_eq!((code(&output), text(&output.stdout).as_str()), (wanted, ""), "{part}: {messages}");
    assert!(
        messages.contains("/tenure") && messages.contains(part) && messages.contains("try: "),
        "{messages}"
    );
    assert!(!store.folder.path().join("state").exists(), "no other store is used: {messages}");
}

#[test]
fn a_file_that_other_users_may_write_is_refused() {
    let store = Store::new();
    let file = configured(&store, &store.url());
    for mode in [0o666, 0o620, 0o602] {
        set_mode(&file, mode);
        refused(&store, 64, "may be written by others");
    }
    set_mode(&file, 0o644);
    let folder = file.parent().unwrap();
    set_mode(folder, 0o777);
    refused(&store, 64, "may be written by others");
    set_mode(folder, 0o1777);
    assert_eq!(code(&output(&mut by_file(&store, &["run", "k", "--", "true"]))), 0, "sticky");
    if rustix::process::geteuid().is_root() {
        set_mode(folder, 0o755);
        std::os::unix::fs::chown(&file, Some(12345), None).unwrap();
        refused(&store, 64, "belongs to user 12345");
    }
}

#[test]
fn a_file_with_a_password_must_not_be_readable_by_all() {
    let store = Store::new();
    let file = configured(&store, "redis://me:secret@127.0.0.1:1/");
    set_mode(&file, 0o644);
    refused(&store, 64, "holds a password");
    set_mode(&file, 0o640);
    let output = output(&mut by_file(&store, &["ls"]));
    assert_eq!(code(&output), 69, "no server is there, but it was tried: {output:?}");
    assert!(!text(&output.stderr).contains("secret"), "{output:?}");
}

#[test]
fn a_file_that_does_not_name_one_store_is_refused() {
    let store = Store::new();
    for (content, part) in [
        ("", "no URL"),
        ("# sqlite:/a\n", "no URL"),
        ("sqlite:/a\nsqlite:/b\n", "more than one URL"),
        ("sqlite:locks.db\n", "without its folder"),
    ] {
        configured(&store, content);
        refused(&store, 64, part);
    }
    let file = configured(&store, "");
    std::fs::write(&file, b"\xff\xfe").unwrap();
    refused(&store, 64, "cannot read");
    std::fs::remove_file(&file).unwrap();
    std::fs::create_dir(&file).unwrap();
    refused(&store, 64, "not a regular file");
    std::fs::remove_dir(&file).unwrap();
    assert!(Command::new("mkfifo").arg(&file).status().unwrap().success());
    refused(&store, 64, "not a regular file");
}

#[test]
fn an_error_of_a_url_names_the_file_that_contains_it() {
    let store = Store::new();
    for (url, wanted) in [("foo:", 64), ("sqlite:?pol=1", 64), ("redis://127.0.0.1:1", 69)] {
        configured(&store, url);
        for verb in [&["run", "k", "--", "true"][..], &["ls"], &["wait", "k"]] {
            let output = output(&mut by_file(&store, verb));
            let messages = text(&output.stderr);
            assert_eq!(code(&output), wanted, "{url} {verb:?}: {messages}");
            assert!(messages.contains("config/tenure/url`)"), "{url} {verb:?}: {messages}");
        }
    }
}

#[test]
fn reach_network_refuses_a_store_of_one_machine() {
    let store = Store::new();
    let state = store.folder.path().join("state");
    let run = ["run", "k", "--", "sh", "-c", "echo $TENURE_REACH"];
    let refuses = |command: &mut Command, part: &str| {
        let output = output(command.env("XDG_STATE_HOME", &state));
        let messages = text(&output.stderr);
        assert_eq!((code(&output), text(&output.stdout).as_str()), (64, ""), "{messages}");
        assert!(messages.contains("one machine only") && messages.contains(part), "{messages}");
        assert!(!state.exists(), "nothing was made");
    };
    refuses(tenure(run).env("TENURE_REACH", "network"), "no URL is given");
    refuses(&mut tenure(["--reach", "network"].into_iter().chain(run)), "no URL is given");
    refuses(store.tenure(run).env("TENURE_REACH", "network"), "`sqlite:`");
    for verb in [&["ls"][..], &["show", "k"], &["wait", "k"], &["doctor"]] {
        refuses(store.tenure(verb.iter().copied()).env("TENURE_REACH", "network"), "`sqlite:`");
    }
    configured(&store, &store.url());
    refuses(by_file(&store, &run).env("TENURE_REACH", "network"), "config/tenure/url");

    let on_network = ["--reach", "network", "--url", "redis://127.0.0.1:1", "ls"];
    assert_eq!(code(&output(&mut tenure(on_network))), 69, "a server is tried");
    let machine = ["--reach", "machine"].into_iter().chain(run);
    assert_eq!(code(&output(store.tenure(machine).env("TENURE_REACH", "network"))), 0);
    assert_eq!(code(&output(store.tenure(run).env("TENURE_REACH", ""))), 0);
    assert_eq!(code(&output(store.tenure(run).env("TENURE_REACH", "galaxy"))), 64);
}

#[test]
fn run_without_url_and_terminal_reports_its_reach() {
    let store = Store::new();
    let here = |args: &[&str]| {
        let mut command = tenure(args.iter().copied());
        command.env("XDG_STATE_HOME", store.folder.path());
        command
    };
    let output = output(&mut here(&["run", "k", "--", "true"]));
    let messages = text(&output.stderr);
    assert_eq!((code(&output), messages.lines().count()), (0, 1), "{messages}");
    assert!(messages.contains("this machine only"), "{messages}");
    let said = support::output(&mut here(&["run", "--json", "k", "--", "true"]));
    assert!(text(&said.stderr).lines().next().unwrap().contains("\"warning\""), "{said:?}");

    let silent = support::output(&mut here(&["--url", "sqlite:", "run", "k", "--", "true"]));
    assert_eq!(text(&silent.stderr), "");
    let mut terminal = Terminal::start(&mut here(&["run", "k", "--", "echo", "done"]));
    terminal.expect("done");
    assert_eq!(terminal.code(), 0);
    assert!(!terminal.all().contains("machine"), "{}", terminal.all());
}

#[test]
fn doctor_reports_the_reach_of_a_local_store() {
    let store = Store::new();
    let output = store.output(["doctor"]);
    assert!(text(&output.stdout).contains("notice   reach: excludes this machine only"));
}
