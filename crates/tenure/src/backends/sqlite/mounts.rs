//! Checks that all processes that open the file do it through one kernel and one name: the file is
//! on a local file system, and is not mounted by itself.

use std::path::Path;

use super::error::from_io;
use crate::error::{Error, ErrorKind, Result};

const FUSE: u32 = 0x6573_5546;

/// File systems that only one kernel writes to, from `linux/magic.h` and their sources.
const LOCAL: [u32; 15] = [
    0x0000_3434, // nilfs2
    0x0000_ef53, // ext2, ext3, ext4
    0x0102_1994, // tmpfs
    0x2011_bab0, // exfat
    0x2405_1905, // ubifs
    0x2fc1_2fc1, // zfs
    0x3153_464a, // jfs
    0x5265_4973, // reiserfs
    0x5846_5342, // xfs
    0x7366_746e, // ntfs3
    0x794c_7630, // overlay: what is written goes to its upper layer, which is local
    0x8584_58f6, // ramfs
    0x9123_683e, // btrfs
    0xca45_1a4e, // bcachefs
    0xf2f5_2010, // f2fs
];

/// File systems that more than one kernel may write to.
const SHARED: [(u32, &str); 17] = [
    (0x0000_517b, "SMB"),
    (0x0000_6969, "NFS"),
    (0x00c3_6400, "Ceph"),
    (0x0102_1997, "9p"),
    (0x0116_1970, "GFS2"),
    (0x0bd0_0bd0, "Lustre"),
    (0x1983_0326, "BeeGFS"),
    (0x2003_0528, "OrangeFS"),
    (0x4750_4653, "GPFS"),
    (0x5346_414f, "AFS"),
    (0x6b41_4653, "AFS"),
    (0x7461_636f, "OCFS2"),
    (0x786f_4256, "a shared folder of VirtualBox"),
    (0xaad7_aaea, "PanFS"),
    (0xbacb_acbc, "a shared folder of VMware"),
    (0xfe53_4d42, "SMB"),
    (0xff53_4d42, "CIFS"),
];

/// Refuses a folder on a file system that other machines may write to. One that is not known to be
/// local is refused too, unless `allow` is set.
#[cfg(target_os = "linux")]
pub(super) fn check_folder(folder: &Path, allow: bool) -> Result<()> {
    let file_system = rustix::fs::statfs(folder).map_err(|errno| from_io(folder, errno.into()))?;
    // Magic numbers have 32 bits; on some machines they come sign-extended.
    refuse_file_system(folder, file_system.f_type as u32, allow)
}

#[cfg(not(target_os = "linux"))]
pub(super) fn check_folder(_folder: &Path, _allow: bool) -> Result<()> {
    Ok(())
}

#[cfg_attr(not(target_os = "linux"), allow(dead_code, reason = "the numbers are Linux's"))]
fn refuse_file_system(folder: &Path, magic: u32, allow: bool) -> Result<()> {
    let shared = SHARED.iter().find(|(known, _)| *known == magic).map(|(_, name)| *name);
    if shared.is_none() && (allow || LOCAL.contains(&magic)) {
        return Ok(());
    }
    let advice = match shared {
        Some(_) => {
            "name a file on a local disk with `sqlite:PATH`, or use a server such as `redis:`"
        }
        None => "add `?network=allow` if this mount is local, or name a file on a local disk",
    };
    let name = match (shared, magic) {
        (Some(name), _) => name.to_owned(),
        (None, FUSE) => "FUSE".to_owned(),
        (None, _) => format!("a file system that is not known to be local (number {magic:#x})"),
    };
    Err(Error::new(
        ErrorKind::Unsupported,
        format!(
            "`{}` is on {name}: the store needs memory shared by one kernel, and cannot promise \
             there that two machines do not hold the same lock; {advice}",
            folder.display()
        ),
    ))
}

/// Refuses a file that is mounted by itself, as by `docker -v locks.db:/locks.db`. It is the same
/// file in two folders, and each folder has a log, an index and sessions of its own: two stores
/// that do not see each other and write into one file.
#[cfg(target_os = "linux")]
pub(super) fn check_file(file: &Path) -> Result<()> {
    use rustix::fs::{AtFlags, CWD, StatxAttributes, StatxFlags, statx};
    let attributes = statx(CWD, file, AtFlags::SYMLINK_NOFOLLOW, StatxFlags::empty());
    let mounted = match attributes {
        Ok(attributes) if attributes.stx_attributes_mask.contains(StatxAttributes::MOUNT_ROOT) => {
            attributes.stx_attributes.contains(StatxAttributes::MOUNT_ROOT)
        }
        // Kernels before 5.8 do not set this attribute.
        _ => std::fs::read_to_string("/proc/self/mountinfo")
            .is_ok_and(|mounts| is_mount_point(&mounts, file)),
    };
    if !mounted {
        return Ok(());
    }
    let message = format!(
        "`{}` is mounted as a single file: what is written beside it is not seen under its other \
         path, and both could hold the same lock; mount the folder instead",
        file.display()
    );
    Err(Error::new(ErrorKind::Unsupported, message))
}

#[cfg(not(target_os = "linux"))]
pub(super) fn check_file(_file: &Path) -> Result<()> {
    Ok(())
}

/// Whether a file is among the mount points of a `/proc/self/mountinfo`, which writes blanks and
/// the like in octal.
#[cfg_attr(not(target_os = "linux"), allow(dead_code, reason = "a file of Linux"))]
fn is_mount_point(mounts: &str, file: &Path) -> bool {
    let escaped: String = file.to_string_lossy().chars().fold(String::new(), |mut text, c| {
        match c {
            ' ' | '\t' | '\n' | '\\' => text.push_str(&format!("\\{:03o}", u32::from(c))),
            _ => text.push(c),
        }
        text
    });
    mounts.lines().filter_map(|line| line.split(' ').nth(4)).any(|point| point == escaped)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refuse(magic: u32, allow: bool) -> Result<()> {
        refuse_file_system(Path::new("/n"), magic, allow)
    }

    #[test]
    fn a_network_file_system_is_refused_and_says_what_it_cannot_promise() {
        for (magic, name) in SHARED {
            let error = refuse(magic, true).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported);
            assert!(error.to_string().contains(name) && error.to_string().contains("`/n`"));
            assert!(error.to_string().contains("cannot promise"), "{error}");
        }
    }

    #[test]
    fn a_file_system_that_is_not_known_to_be_local_must_be_allowed() {
        for (magic, name) in [(FUSE, "FUSE"), (0x1234_5678, "0x12345678")] {
            let error = refuse(magic, false).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported);
            assert!(error.to_string().contains("?network=allow"), "{error}");
            assert!(error.to_string().contains(name), "{error}");
            refuse(magic, true).unwrap();
        }
        for magic in LOCAL {
            refuse(magic, false).unwrap();
        }
    }

    #[test]
    fn a_mounted_file_is_found_in_the_list_of_mounts() {
        let mounts = "22 1 254:0 / / rw - ext4 /dev/vda rw\n\
                      40 22 254:0 /a/x.db /srv/my\\040locks.db rw - ext4 /dev/vda rw\n";
        assert!(is_mount_point(mounts, Path::new("/srv/my locks.db")));
        assert!(!is_mount_point(mounts, Path::new("/srv")));
        assert!(!is_mount_point("garbage\n", Path::new("/")));
    }
}
