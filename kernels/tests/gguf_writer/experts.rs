//! Experts' matrices, and those of an MLP that all rows pass, as llama.cpp's converter puts them together and apart.

use super::NamedTensors;

/// The experts of a layer in one tensor for each of their matrices, by llama.cpp's names.
pub fn stack(all: &mut NamedTensors) {
    const PARTS: [(&str, &str); 6] =
        [("gate_proj", "gate"), ("up_proj", "up"), ("down_proj", "down"), ("w1", "gate"), ("w3", "up"), ("w2", "down")];
    let (experts, others): (NamedTensors, NamedTensors) =
        std::mem::take(all).into_iter().partition(|(name, _)| name.contains(".experts."));
    *all = others;
    let mut put = |layer: &str, part: &str, expert: usize, (shape, numbers): (&[usize], &[f32])| {
        let name = format!("{layer}.ffn_{part}_exps.weight");
        let (stacked, both) = all.entry(name).or_insert_with(|| (vec![0, shape[0], shape[1]], Vec::new()));
        both.resize(both.len().max((expert + 1) * numbers.len()), 0.0);
        both[expert * numbers.len()..][..numbers.len()].copy_from_slice(numbers);
        stacked[0] = stacked[0].max(expert + 1);
    };
    for (name, (shape, numbers)) in experts {
        let (block, part) = name.split_once(".experts.").unwrap();
        let (layer, _) = block.rsplit_once('.').unwrap();
        let parts: Vec<&str> = part.split('.').collect();
        if let [expert, part, "weight"] = parts[..] {
            let (_, part) = PARTS.iter().find(|(theirs, _)| *theirs == part).unwrap();
            put(layer, part, expert.parse().unwrap(), (&shape, &numbers));
            continue;
        }
        for (expert, numbers) in numbers.chunks_exact(shape[1] * shape[2]).enumerate() {
            if part == "down_proj" {
                put(layer, "down", expert, (&shape[1..], numbers));
                continue;
            }
            let (gate, up) = numbers.split_at(numbers.len() / 2);
            for (part, half) in [("gate", gate), ("up", up)] {
                put(layer, part, expert, (&[shape[1] / 2, shape[2]], half));
            }
        }
    }
}

/// Granite 4's one matrix for gate and up, in two.
pub fn split_shared(all: &mut NamedTensors) {
    const BOTH: &str = ".shared_mlp.input_linear.weight";
    let (both, others): (NamedTensors, NamedTensors) =
        std::mem::take(all).into_iter().partition(|(name, _)| name.ends_with(BOTH));
    *all = others;
    for (name, (shape, numbers)) in both {
        let (gate, up) = numbers.split_at(numbers.len() / 2);
        for (part, half) in [("gate_proj", gate), ("up_proj", up)] {
            let name = name.replace(BOTH, &format!(".mlp.{part}.weight"));
            all.insert(name, (vec![shape[0] / 2, shape[1]], half.to_vec()));
        }
    }
}
