//! What a peer may say of its models and devices.

use crate::messages::advert;
use tsnode_protocol::{Advert, ModelId, Served};

#[test]
fn an_advert_serves_what_it_has_within_what_there_is() {
    let refused = |change: &dyn Fn(&mut Advert)| {
        let mut advert = advert();
        change(&mut advert);
        advert.check().is_err()
    };
    let part = |model: u8, gib: u64| Served {
        model: ModelId([model; 16]),
        memory_bytes: gib << 30,
        kv_bytes: 0,
        is_kept: false,
        profile: None,
    };
    assert!(!refused(&|_| ()) && !refused(&|a| a.devices[0].serves.clear()));
    assert!(refused(&|a| a.models = vec![a.models[1].clone(); 10_000]), "ten thousand models");
    assert!(refused(&|a| a.partial.push(a.partial[0].clone())) && refused(&|a| a.partial[0].layers[1].end = 6));
    assert!(refused(&|a| a.origins.push(a.origins[0].clone())) && refused(&|a| a.origins[0].source.push('\n')));
    assert!(refused(&|a| a.partial[0].model.0 = [8; 16]) && refused(&|a| a.origins[0].model.0 = [8; 16]), "of none");
    assert!(refused(&|a| a.devices[0].serves = vec![part(7, 0); 10_000]), "on a device");
    assert!(refused(&|a| a.devices[0].serves.push(part(7, 0))), "one twice");
    assert!(refused(&|a| a.devices[0].serves[1] = part(8, 1)), "one that it has not");
    assert!(refused(&|a| a.devices[0].serves[1] = part(7, 25)), "more memory than there is");
    assert!(refused(&|a| a.devices[0].serves[1].kv_bytes = 3 << 30), "more pages than there are");
    assert!(refused(&|a| a.devices[0].serves[1].profile = a.devices[0].serves[0].profile), "another's times");
}

#[test]
fn a_device_holds_models_at_once_as_far_as_its_memory_goes() {
    let mut device = advert().devices.remove(0);
    let model = |n: u8| ModelId([n; 16]);
    let part = |n: u8, gib: u64| Served {
        model: model(n),
        memory_bytes: gib << 30,
        kv_bytes: 1 << 30,
        is_kept: false,
        profile: None,
    };
    device.memory_bytes = 8 << 30;
    device.serves = vec![part(1, 5), part(2, 4), part(3, 2)];
    let holds = |models: &[u8]| device.holds(&models.iter().map(|n| model(*n)).collect());
    // Five, four and two, of which one each is kept anyway.
    assert!(holds(&[]) && holds(&[1]) && holds(&[2]) && holds(&[1, 3]) && holds(&[2, 3]));
    assert!(!holds(&[1, 2]) && !holds(&[1, 2, 3]));
    // What is kept counts whether or not it is asked about.
    device.serves[2].is_kept = true;
    let holds = |models: &[u8]| device.holds(&models.iter().map(|n| model(*n)).collect());
    assert!(holds(&[]) && holds(&[1]) && holds(&[2, 3]) && !holds(&[1, 2]));
}
