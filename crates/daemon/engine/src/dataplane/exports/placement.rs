//! On which shards connections are placed, by the rules of the configuration.

use std::sync::Arc;

use endpoint::ShardId;
use shard::PlacementReason;

use super::{FixedSettings, to_shard_network};
use config::plan::{ConnectionPlacement, CoreChoice, ExportPlan};

impl FixedSettings {
    /// Finds the shards of the cores that rules name: `cores` are those of the daemon, in shard order; the
    /// daemon has one shard at least.
    pub fn resolve_placement(
        &mut self,
        rules: &[ConnectionPlacement],
        cores: &[usize],
    ) -> Result<(), String> {
        self.cores = cores.iter().map(|core| *core as u32).collect();
        let all = 0..cores.len().max(1) as u16;
        for (at, rule) in rules.iter().enumerate() {
            let shard = |core: &usize| match cores.iter().position(|own| own == core) {
                Some(shard) => Ok(ShardId(shard as u16)),
                None => Err(format!(
                    "rule {} of [[placement]] names core {core}; the daemon has the cores {cores:?} (--cores)",
                    at + 1
                )),
            };
            let shards: Arc<[ShardId]> = if let Some(nth) = rule.nth {
                Arc::from([ShardId(nth % all.end)])
            } else if rule.cores.is_empty() {
                all.clone().map(ShardId).collect()
            } else {
                rule.cores.iter().map(shard).collect::<Result<_, _>>()?
            };
            self.placement.push((rule.clone(), shards));
        }
        Ok(())
    }

    /// What a report says of how a core was chosen.
    pub fn placement_text(&self, placed: shard::PlacementOutcome) -> String {
        let how = match placed.choice {
            PlacementReason::LeastLoaded => "least loaded",
            PlacementReason::Random => "random",
            PlacementReason::Queue => "its network queue's",
            PlacementReason::NotQueue => "least loaded, since its network queue's has far more",
        };
        let Some((at, (placement, _))) = placed.rule.and_then(|at| Some((at, self.placement.get(at)?)))
        else {
            return format!("all cores, {how}");
        };
        let cores: Vec<String> = placement.cores.iter().map(ToString::to_string).collect();
        let cores = match placement.nth {
            Some(nth) => format!("number {nth} of all"),
            None if cores.is_empty() => "all".to_owned(),
            None => cores.join(","),
        };
        format!("rule {}: cores {cores}, {how}", at + 1)
    }

    pub(super) fn placement_rules(&self, ways: &ExportPlan) -> Vec<shard::PlacementRule> {
        let rule = |(rule, shards): &(ConnectionPlacement, Arc<[ShardId]>)| shard::PlacementRule {
            listeners: rule
                .portals
                .as_ref()
                .map(|portals| portals.iter().filter_map(|at| self.listener(*at)).collect()),
            sources: rule.sources.iter().map(to_shard_network).collect(),
            peers: rule.peers.as_ref().map(|peers| peers.iter().map(|name| name.as_str().into()).collect()),
            when: rule.when.clone(),
            destinations: rule.volume.as_ref().map(|volume| ways.names_exporting(volume.as_str())),
            shards: shards.clone(),
            bind: match rule.bind {
                CoreChoice::Balanced => shard::PlacementPolicy::Balanced,
                CoreChoice::Queue => shard::PlacementPolicy::Queue,
                CoreChoice::Cpu => shard::PlacementPolicy::LeastLoaded,
                CoreChoice::Random => shard::PlacementPolicy::Random,
            },
        };
        self.placement.iter().map(rule).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::example::example_plan;

    #[test]
    fn rules_of_placement_name_shards_and_what_leads_to_a_volume() {
        let mut plan = example_plan();
        let volume = plan.volumes[0].name.clone();
        let named = ConnectionPlacement {
            cores: vec![7, 2],
            volume: Some(volume.clone()),
            ..ConnectionPlacement::default()
        };
        plan.placement =
            vec![named, ConnectionPlacement { bind: CoreChoice::Random, ..ConnectionPlacement::default() }];
        let mut frame = FixedSettings::of(&plan);
        frame.resolve_placement(&plan.placement, &[2, 5, 7]).unwrap();
        let rules = frame.placement_rules(&plan.ways);
        assert_eq!(*rules[0].shards, [ShardId(2), ShardId(0)]);
        let leading = rules[0].destinations.as_ref().unwrap();
        assert!(
            !leading.is_empty() && leading.iter().all(|name| plan.ways.exports_volume(name, volume.as_str()))
        );
        assert_eq!((rules[1].shards.len(), rules[1].destinations.as_ref()), (3, None));
        let placed = |rule, choice| frame.placement_text(shard::PlacementOutcome { rule, choice });
        assert_eq!(placed(Some(0), PlacementReason::LeastLoaded), "rule 1: cores 7,2, least loaded");
        assert_eq!(placed(None, PlacementReason::Queue), "all cores, its network queue's");
        assert_eq!(rules[0].bind, shard::PlacementPolicy::Balanced);
        let why = FixedSettings::of(&plan).resolve_placement(&plan.placement, &[2, 5]).unwrap_err();
        assert!(
            why.starts_with("rule 1 of [[placement]] names core 7; the daemon has the cores [2, 5]"),
            "{why}"
        );
    }
}
