//! Limits that are said while a peer runs: what holds, what is kept, what is refused.

use super::*;

fn bounds() -> LimitBounds {
    LimitBounds { all_threads: 8, ranks: 2, ..LimitBounds::default() }
}

fn upload(mbit: LimitUpdate<f64>) -> LimitChange {
    LimitChange { upload_mbit: mbit, ..LimitChange::default() }
}

fn tell(handle: &LimitsHandle, change: LimitChange) -> Result<Vec<String>, LimitError> {
    handle.change(change, |_| ())
}

fn text(folder: &Path) -> String {
    fs::read_to_string(folder.join(LIMITS_FILE)).unwrap_or_default()
}

#[test]
fn a_limit_on_uploads_holds_at_once_and_is_kept_beside_the_others() {
    let folder = tempfile::tempdir().unwrap();
    let (handle, _relends) = LimitsHandle::new(folder.path(), Limits::default(), bounds());
    let rate = handle.upload();
    let said = tell(&handle, upload(LimitUpdate::To(8.0))).unwrap();
    assert_eq!((*rate.borrow(), handle.limits().upload_mbit), (Some(BytesPerSecond(1e6)), Some(8.0)));
    assert_eq!(said, ["sends at most 8 Mbit/s to other peers"]);
    let hours = LimitChange { hours: LimitUpdate::To("22:00-07:00".parse().unwrap()), ..LimitChange::default() };
    assert!(tell(&handle, hours).unwrap()[0].contains("22:00-07:00"));
    assert!(text(folder.path()).ends_with("hours = \"22:00-07:00\"\nupload_mbit = \"8\"\n"), "{}", text(folder.path()));
    // A peer that starts again keeps what it does not change.
    let (again, _relends) = LimitsHandle::new(folder.path(), Limits::default(), bounds());
    tell(&again, upload(LimitUpdate::Unlimited)).unwrap();
    assert!(text(folder.path()).ends_with("hours = \"22:00-07:00\"\nupload_mbit = \"\"\n"), "no limit is said, too");
    assert_eq!(again.kept().len(), 2);
}

#[test]
fn what_its_owner_has_written_there_is_kept_too() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join(LIMITS_FILE), "threads = 2\nupload-mbit = 1.5\n").unwrap();
    let (handle, _relends) = LimitsHandle::new(folder.path(), Limits::default(), bounds());
    tell(&handle, LimitChange { hours: LimitUpdate::Unlimited, ..LimitChange::default() }).unwrap();
    let kept = text(folder.path());
    assert!(kept.ends_with("hours = \"\"\nthreads = \"2\"\nupload_mbit = \"1.5\"\n"), "{kept}");
}

#[test]
fn what_does_not_hold_is_not_kept() {
    let folder = tempfile::tempdir().unwrap();
    let (handle, mut relends) = LimitsHandle::new(folder.path(), Limits { threads: 8, ..Limits::default() }, bounds());
    let change =
        LimitChange { memory_bytes: LimitUpdate::To(2 << 30), threads: LimitUpdate::To(4), ..LimitChange::default() };
    assert!(tell(&handle, change).unwrap()[0].starts_with("lends its models anew"));
    assert_eq!((tell(&handle, change), handle.relending()), (Err(LimitError::Busy), Relending::UnderWay));
    let relend = relends.try_recv().unwrap();
    assert_eq!(relend.over((None, 8)), (Some(2 << 30), 4));
    handle.settled(relend, Err("too little".into()));
    assert_eq!((handle.limits().threads, text(folder.path())), (8, String::new()));
    tell(&handle, change).unwrap();
    handle.settled(relends.try_recv().unwrap(), Ok("lends".into()));
    assert_eq!((handle.limits().threads, handle.limits().memory_bytes), (4, Some(2 << 30)));
    assert!(text(folder.path()).ends_with("memory = \"2048MiB\"\nthreads = \"4\"\n"));
    let all = LimitChange { threads: LimitUpdate::Unlimited, ..LimitChange::default() };
    tell(&handle, all).unwrap();
    let relend = relends.try_recv().unwrap();
    assert_eq!(relend.over((None, 4)), (None, 8), "as many as there are");
    handle.settled(relend, Err("too little".into()));
    assert_eq!(handle.relending(), Relending::Refused { why: "too little".into() });
    tell(&handle, upload(LimitUpdate::To(8.0))).unwrap();
    assert_eq!(handle.relending(), Relending::None, "that was of the change before");
    drop(relends);
    assert_eq!(tell(&handle, change), Err(LimitError::LendsNothing));
}

#[test]
fn what_no_start_would_take_is_refused_and_what_goes_before_it_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let fixed = BTreeMap::from([(UPLOAD, "--upload-mbit 5".to_owned())]);
    let bounds = LimitBounds { fixed, has_cores: true, ..bounds() };
    let (handle, mut relends) = LimitsHandle::new(folder.path(), Limits::default(), bounds);
    let nothing = LimitChange::default();
    for wrong in [
        upload(LimitUpdate::To(0.0)),
        upload(LimitUpdate::To(0.74)),
        upload(LimitUpdate::To(f64::NAN)),
        LimitChange { memory_bytes: LimitUpdate::To(1), ..nothing },
        LimitChange { threads: LimitUpdate::To(1), ..nothing },
        LimitChange { threads: LimitUpdate::To(9), ..nothing },
    ] {
        assert!(matches!(tell(&handle, wrong), Err(LimitError::Value { .. })), "{wrong:?}");
    }
    assert_eq!(text(folder.path()), "");
    let said = tell(&handle, upload(LimitUpdate::To(1.5))).unwrap();
    assert!(said[1].contains("--upload-mbit 5 holds again"), "{said:?}");
    let said = tell(&handle, LimitChange { threads: LimitUpdate::To(2), ..nothing }).unwrap();
    assert!(said[0].contains("next start") && relends.try_recv().is_err(), "{said:?}");
    assert!(text(folder.path()).contains("threads = \"2\""));
    let (full, _relends) = LimitsHandle::new(&folder.path().join("gone"), Limits::default(), super::tests::bounds());
    assert!(matches!(tell(&full, upload(LimitUpdate::To(1.0))), Err(LimitError::NotKept { .. })));
    assert_eq!(full.limits().upload_mbit, None, "what cannot be kept changes nothing");
}

#[test]
fn of_two_changes_at_once_what_holds_is_what_is_kept() {
    fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
        fs::write(path, bytes)
    }
    let folder = tempfile::tempdir().unwrap();
    let (handle, _relends) = LimitsHandle::written_by(write, folder.path(), Limits::default(), bounds());
    let now = Mutex::new(None::<Hours>);
    let hours: [Hours; 2] = ["22:00-07:00", "1:00-2:00"].map(|hours| hours.parse().unwrap());
    for _ in 0..200 {
        let together = std::sync::Barrier::new(2);
        std::thread::scope(|scope| {
            for (mbit, hours) in [8.0, 5.0].into_iter().zip(hours) {
                let change = LimitChange { hours: LimitUpdate::To(hours), ..upload(LimitUpdate::To(mbit)) };
                let (handle, now, together) = (&handle, &now, &together);
                scope.spawn(move || {
                    together.wait();
                    handle.change(change, |hours| *lock(now) = hours).unwrap();
                });
            }
        });
        let (kept, rate) = (handle.kept(), *handle.upload().borrow());
        assert_eq!(kept[UPLOAD], handle.limits().upload_mbit.unwrap().to_string());
        assert_eq!(rate, handle.limits().upload());
        assert_eq!(kept[HOURS], lock(&now).unwrap().to_string());
        assert!(text(folder.path()).ends_with(&format!("upload_mbit = \"{}\"\n", kept[UPLOAD])));
    }
}

#[test]
fn what_is_written_and_may_be_lost_again_holds_and_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let (handle, mut relends) =
        LimitsHandle::written_by(disk::write_unsynced, folder.path(), Limits::default(), bounds());
    let said = tell(&handle, upload(LimitUpdate::To(8.0))).unwrap();
    assert!(said[1].contains("limits.toml: it is written, but"), "{said:?}");
    assert_eq!((handle.limits().upload_mbit, &*handle.kept()[UPLOAD]), (Some(8.0), "8"));
    tell(&handle, LimitChange { threads: LimitUpdate::To(4), ..LimitChange::default() }).unwrap();
    handle.settled(relends.try_recv().unwrap(), Ok("lends".into()));
    assert!(matches!(handle.relending(), Relending::Done { said } if said.contains("it is written, but")));
    assert_eq!(&*handle.kept()[THREADS], "4");
}
