"""The renames. Keys are full names of today; values are the new last name. Checked against the code at commit 746e0f7c."""

MODULES = {  # full dotted old name -> new last part
    "hmmscope.corpora": "datasets",
    "hmmscope.corpora.corpus": "process_dataset",
    "hmmscope.corpora.judged": "target_base",
    "hmmscope.machine": "system_info",
    "hmmscope.processes.laws": "params",
    "hmmscope.processes.told": "header_hmms",
    "hmmscope.processes.fresh": "hmm_per_sample",
    "hmmscope.processes.given_sequences": "recorded_sequences",
    "hmmscope.processes.answers": "capabilities",
    "hmmscope.processes.urns": "polya_urn",
    "hmmscope.processes.narrow": "require_type",
    "hmmscope.processes.augmentation": "driven_as_hmm",
    "hmmscope.inference.climbing": "em",
    "hmmscope.inference.likeliest": "stable_argmax",
    "hmmscope.inference.stationary_law": "stationary_process",
    "hmmscope.emissions.few_states": "log_likelihood_loops",
    "hmmscope.emissions.by_table": "many_states_table",
    "hmmscope.emissions.in_logarithms": "log_space_chain",
    "hmmscope.emissions.number_draws": "vector_gibbs",
    "hmmscope.emissions.number_evidence": "vector_evidence",
    "hmmscope.emissions.expectation": "fit_emissions_em",
    "hmmscope.emissions.emitting": "emission_hmm",
    "hmmscope.emissions.channels": "multichannel",
    "hmmscope.kernels.careful": "underflow_safe",
    "hmmscope.kernels.logarithms": "log_space",
    "hmmscope.kernels.lanes": "simd_over_sequences",
    "hmmscope.kernels.registers": "simd_over_states",
    "hmmscope.kernels.models_beside": "simd_over_models",
    "hmmscope.kernels.phases": "compile_units",
    "hmmscope.engine.halves": "bfloat16_maps",
    "hmmscope.models.listening": "hooks",
    "hmmscope.models.given": "user_module",
    "hmmscope.models.foreign": "transformers_model",
    "hmmscope.models.foreign_specs": "transformers_specs",
    "hmmscope.interop.any_module": "hooked_module",
    "hmmscope.interop.taking": "adapters",
    "hmmscope.interop.lens": "transformer_lens",
    "hmmscope.interop.tapped": "hooked_models",
    "hmmscope.runs.beginnings": "warm_start",
    "hmmscope.runs.room": "resources",
    "hmmscope.runs.live": "page_export",
    "hmmscope.runs.warming": "compile_ahead",
    "hmmscope.runs.number_files": "vector_files",
    "hmmscope.runs.number_sequences": "vector_sequences",
    "hmmscope.analysis.counting": "ngrams",
    "hmmscope.analysis.trained_counting": "trained_ngrams",
    "hmmscope.analysis.twins": "untrained_controls",
    "hmmscope.analysis.screening": "ngram_reach",
    "hmmscope.sequences.asked": "read_request",
    "hmmscope.sequences.rule": "read_options",
    "hmmscope.sklearn.seen": "encoded",
    "hmmscope.sklearn.counted": "poisson_hmm",
    "hmmscope.sklearn.mixed": "gmm",
    "hmmscope.sklearn.real_valued": "vector_estimator",
    "hmmscope.lab.evidence.examined": "sensitivity",
    "hmmscope.lab.evidence.clouds": "scatter_data",
    "hmmscope.lab.evidence.budget_laws": "scaling_laws",
    "hmmscope.lab.experiments.judging": "derived_findings",
    "hmmscope.lab.experiments.looks": "series_styles",
    "hmmscope.lab.looking": "model_page",
    "hmmscope.lab.looking.looking": "model_page",
    "hmmscope.lab.looking.pushing": "intervention_panel",
    "hmmscope.lab.looking.tracing": "trace_panel",
    "hmmscope.lab.looking.explaining": "description_panel",
    "hmmscope.lab.looking.measuring": "page_measurements",
    "hmmscope.lab.report.wording": "formatting",
    "hmmscope.lab.report.state_picture": "state_diagram",
    "hmmscope.lab.report.series_look": "series_style",
    "hmmscope.lab.study.said_of_fit": "fit_summary",
    "hmmscope.lab.study.conduct": "run_study",
    "hmmscope.lab.verbs.endings": "output_paths",
    "hmmscope.lab.verbs.first_calls": "precompile",
    "hmmscope.lab.verbs.oracle": "sequence_answers",
    "hmmscope.lab.verbs.ask": "infer",
    "hmmscope_papers.header.told_answers": "filtering_answers",
    "hmmscope_papers.header.told_measures": "filtering_measures",
    "hmmscope_papers.header.told_models": "filtering_models",
    "hmmscope_papers.limits.hard_dose": "supervision_rate",
    "hmmscope_papers.limits.law": "scaling_law",
    "hmmscope_papers.limits.printed": "paper_values",
    "hmmscope_papers.multitask.own_process": "paper_process",
    "hmmscope_papers.multitask.places": "layer_profiles",
    "hmmscope_papers.multitask.setting": "training_setting",
    "hmmscope_papers.multitask.geometry": "geometry_experiment",
    "hmmscope_papers.multitask.decomposition": "decomposition_experiment",
    "hmmscope_papers.multitask.task_patching": "task_patching_experiment",
    "hmmscope_papers.beliefs.belief_interventions": "belief_interventions_experiment",
    "hmmscope_papers.beliefs.mechanisms": "mechanisms_experiment",
    "hmmscope_papers.beliefs.discovery": "discovery_experiment",
    "hmmscope_papers.beliefs.constrained_updates": "constrained_updates_experiment",
}
TEST_MODULES = {  # top-level modules of tests and scripts
    "acts": "golden_verdicts", "attacks": "adversarial_tables", "planting": "package_copies", "faults": "injected_faults",
    "faults_elsewhere": "injected_faults_elsewhere", "praise": "overclaim_phrases", "ghost": "fake_gpu",
    "last_bits": "perturbed_rounding", "house": "check_architecture", "judged": "headline_review", "owner": "project_metadata", "corpus_cases": "dataset_cases",
}
PATHS = {  # other files and folders to move
    "tests/corpora": "tests/datasets", "tests/looking": "tests/model_page", "tests/laboratory": "tests/adversarial",
    "tests/evidence/acts": "tests/evidence/golden_verdicts", "tests/evidence/probes": "tests/evidence/fixtures",
    "tests/datasets/test_corpus.py": "tests/datasets/test_process_dataset.py",
    "tests/datasets/test_edges_of_corpora.py": "tests/datasets/test_edges_of_datasets.py",
    "tests/kernels/test_device_roads.py": "tests/kernels/test_device_implementations.py",
    "tests/test_survivors.py": "tests/test_surviving_mutants.py",
    "tests/test_owner.py": "tests/test_project_metadata.py",
    "tests/test_last_bits.py": "tests/test_perturbed_rounding.py",
    "tests/test_laboratory.py": "tests/test_adversarial.py",
    "tests/analysis/test_counting.py": "tests/analysis/test_ngrams.py",
    "tests/analysis/test_twins.py": "tests/analysis/test_untrained_controls.py",
    "tests/inference/test_climbing.py": "tests/inference/test_em.py",
    "tests/emissions/test_number_evidence.py": "tests/emissions/test_vector_evidence.py",
    "tests/engine/test_halves.py": "tests/engine/test_bfloat16_maps.py",
    "tests/evidence/test_acts.py": "tests/evidence/test_golden_verdicts.py",
    "tests/evidence/test_attacks.py": "tests/evidence/test_adversarial_tables.py",
    "tests/evidence/test_clouds.py": "tests/evidence/test_scatter_data.py",
    "tests/evidence/test_examined.py": "tests/evidence/test_sensitivity.py",
    "tests/interop/test_any_module.py": "tests/interop/test_hooked_module.py",
    "tests/interop/test_foreign_models.py": "tests/interop/test_transformers_models.py",
    "tests/interop/test_tapped.py": "tests/interop/test_hooked_models.py",
    "tests/model_page/test_look.py": "tests/model_page/test_model_page.py",
    "tests/runs/test_beginnings.py": "tests/runs/test_warm_start.py",
    "tests/runs/test_live.py": "tests/runs/test_page_export.py",
    "tests/runs/test_number_files.py": "tests/runs/test_vector_files.py",
    "docs/judged.md": "docs/headline-review.md", "docs/judged.toml": "docs/headline-review.toml",
}
P, I, E, A, R, L, C, M, T, S, Q = ("hmmscope.processes.", "hmmscope.inference.", "hmmscope.emissions.", "hmmscope.analysis.", "hmmscope.runs.",
    "hmmscope.lab.", "hmmscope.corpora.", "hmmscope.models.", "hmmscope.training.", "hmmscope.sklearn.", "hmmscope.sequences.")
G, K, O, X, N = "hmmscope.engine.", "hmmscope.kernels.", "hmmscope.constructions.", "hmmscope_papers.", "hmmscope.interop."
SYMBOLS = {  # classes, functions and constants of modules
    # hs.
    C+"corpus.Corpus": "ProcessDataset", C+"batches.CorpusStream": "ProcessStream",
    C+"layouts.Sequences": "SequenceLayout", C+"layouts.Prompts": "PromptLayout", C+"layouts.Header": "HeaderLayout", C+"tokenized.Text": "TextLayout",
    E+"emitting.EmittingHMM": "EmissionHMM", E+"channels.ChannelsHMM": "MultichannelHMM",
    P+"answers.Observed": "ObserverOutput", P+"process.Paths": "SampledPaths",
    A+"trained_counting.count": "ngram_baselines", I+"likeliest.likeliest": "stable_argmax",
    I+"observability.future_law": "future_distribution", I+"missing.missing_laws": "missing_probs",
    R+"pipeline.fresh_model": "untrained_model", A+"activations.capture": "capture_activations",
    P+"narrow.as_kind": "require_process_type", P+"narrow.as_pairs": "as_composed_cycles",
    # processes
    P+"laws.Law": "HMMParams", P+"laws.StateEmitting": "StateEmissionParams", P+"laws.EdgeEmitting": "EdgeEmissionParams", P+"laws.Signed": "SignedParams",
    P+"answers.Telling": "HeaderFormat", P+"answers.TELLING": "HEADERS", P+"answers.BY_LAW": "BY_PARAMS", P+"answers.Prior": "PriorProcess",
    P+"told.ToldHMMs": "HeaderHMMs", P+"told.ToldSpec": "HeaderSpec", P+"told.ToldHMMsSpec": "HeaderHMMsSpec", P+"told.ToldSparseHMMsSpec": "HeaderSparseHMMsSpec",
    P+"told.ToldCyclesSpec": "HeaderCyclesSpec", P+"told.ToldSharpHMMsSpec": "HeaderSharpHMMsSpec", P+"told.ToldSlowHMMsSpec": "HeaderSlowHMMsSpec",
    P+"fresh.FreshHMMs": "HMMPerSample", P+"fresh.FreshHMMsSpec": "HMMPerSampleSpec", P+"fresh.FreshAliasedCyclesSpec": "AliasedCyclesPerSampleSpec",
    P+"fresh.FreshMarkovChains": "MarkovChainPerSample", P+"fresh.FreshMarkovChainsSpec": "MarkovChainPerSampleSpec", P+"fresh.Family": "HMMFamily",
    P+"lazy_chains.FreshLazyChainsSpec": "LazyChainPerSampleSpec",
    P+"given_sequences.GivenSequences": "RecordedSequences", P+"from_file.GivenSpec": "ObjectSpec",
    P+"laws.symbol_law": "symbol_probs",
    # datasets
    C+"targets.NextTold": "HeaderNextObservation", C+"targets.BeliefTold": "HeaderBelief", C+"targets.NextGiven": "RecordedNextObservation",
    C+"targets.NextUnknown": "UnknownNextObservation", C+"vector_targets.BeliefOfVectors": "VectorBelief",
    C+"judged.AtObservations": "BeforeEachObservation", C+"judged.AfterObservations": "AfterEachObservation",
    C+"headers.told_hmms": "decoded_hmms", C+"headers.observe_told": "observe_decoded",
    C+"corpus.num_tokens": "vocab_size", C+"corpus.check_corpus": "check_dataset", C+"targets.corpus_of": "dataset_of",
    A+"activations.judged_answers": "target_probs", A+"belief_map.corpus_for": "dataset_for",
    A+"curves.known_component_laws": "known_component_probs", A+"activations.model_laws": "model_probs", A+"activations.as_law": "to_probs",
    # inference, emissions
    I+"climbing.Climb": "EMRunner", I+"climbing.Climbed": "EMResult", I+"climbing.Rules": "MStepSettings", I+"climbing.may_go_beside": "can_run_side_by_side",
    E+"expectation._Climbed": "_EMResult", I+"climbing._Beside": "_SideBySide",
    I+"restarts.Ended": "RestartResult", I+"restarts.Restarts": "RestartSearch",
    E+"chain.likeliest_states": "viterbi_states", E+"by_table.likeliest_of_many": "viterbi_many_states", I+"paths.likeliest_paths": "viterbi_paths",
    I+"optimal.optimal_law": "optimal_probs", I+"compiled.filter_carefully": "filter_underflow_safe", I+"compiled_backward.smooth_carefully": "smooth_underflow_safe",
    I+"compiled_backward.careful_counts": "counts_underflow_safe",
    I+"mixture_posterior.ByComponent": "PerComponentRequest", I+"num_states.HeldOut": "HeldOutScore", I+"num_states.Support": "StateCountPosterior",
    I+"compiled.NextLaws": "NextStepProbs", I+"compiled.next_laws": "next_step_probs",
    E+"few_states.Found": "FilterOutput", E+"few_states.Given": "LogLikelihoodBatch", I+"evidence.Way": "AnnealedSampler",
    E+"number_draws.number_draws": "vector_draws", E+"number_evidence.number_evidence": "vector_evidence",
    # kernels, engine
    G+"halves.Halves": "Bfloat16Maps", G+"halves.CellHalves": "RNNBfloat16Maps", G+"chunks.judge": "loss_and_gradient",
    G+"halves.map_ahead": "map_forward", G+"halves.map_back": "map_backward",
    K+"phases.late": "lazy_compile_unit", K+"phases.phase": "compile_unit",
    # models, interop
    M+"base.Tap": "HookPoint", M+"listening.AttentionTap": "AttentionHookPoint", N+"any_module.TappedModule": "HookedModule",
    N+"tapped.TappedModel": "HookedModel", M+"foreign.TappedLayer": "HookedLayer", M+"listening.Listener": "ModuleHooks",
    M+"listening.Attending": "AttentionHooks", M+"listening.Calls": "FunctionInterceptor", M+"given.GivenModel": "UserModule", M+"given.GivenModelSpec": "UserModuleSpec",
    M+"foreign.ForeignModel": "TransformersModel", M+"base.Ports": "ModelIO", R+"pipeline.ports_of": "model_io_of", N+"taking.with_taps": "with_hook_points",

    # training, runs
    R+"beginnings.Beginning": "SharedPrefix", T+"trainer.Lessons": "BatchSchedule", T+"trainer._Course": "_TrainingLoop", R+"training._Begun": "_CheckedTraining",
    T+"parallel.Single": "SingleProcess", T+"parallel.Exact": "BitExactParallel", T+"parallel.Replicas": "DDPUpdates", T+"parallel.Shards": "FSDPUpdates",
    T+"parallel._Replica": "_DDPModule", T+"distributed.World": "ProcessGroup", T+"distributed._Several": "_TorchProcessGroup",
    T+"signals.Received": "SignalState", T+"signals.Abandoned": "WorkAbandoned", T+"trackers.Quietly": "FailSafeTracker",
    T+"compiled_steps._Room": "_Workspace", R+"live.Twinned": "ControlScores", R+"posterior.Material": "FitData", R+"number_files.read_judges": "read_validation",
    # analysis
    A+"counting.Counting": "TunedNgrams", A+"counting.Counted": "NgramScores", A+"trained_counting.TrainedCounting": "TrainedNgrams",
    A+"counting.judge_counting": "evaluate_ngrams", A+"counting.is_counting": "is_ngram", A+"counting.beyond_counting": "gain_over_ngrams",
    A+"twins.Twins": "UntrainedControls", A+"twins.Share": "ExplainedFraction", A+"twins.draw_twins": "draw_controls", A+"twins.share_beyond": "explained_beyond_controls",
    A+"twins.layer_shares": "explained_by_layer", A+"screening.screen": "ngram_reach", A+"screening.Screening": "NgramReach",
    # sequences, storage, sklearn
    "hmmscope.storage.seals.Survey": "SealReport", "hmmscope.storage.seals.survey": "seal_report", "hmmscope.storage.seals.taken_off": "unsealed",
    # evidence, experiments
    L+"evidence.records.Numbers": "RuleParameters", L+"evidence.records.number": "parameter", L+"evidence.records.Measured": "MeasurementVersion",
    L+"evidence.claim.Seen": "Measurement", L+"experiments.parts.Kept": "StoredParts", L+"experiments.parts.Made": "BuildRecord", L+"evidence.ledger.Stated": "RecordedClaim",
    L+"evidence.ledger.stated": "recorded_claim", L+"experiments.judging.judgements": "derive_findings", L+"experiments.judging.judge_again": "derive_again",
    L+"study.conduct.judgements_of": "findings_of", L+"evidence.panels.Look": "NameAndRole",
    L+"report.series_look.looks_of": "styles_of", L+"report.series_look.looks": "styles", L+"report.interactive.look_data": "style_data",
    L+"evidence.figure.Cloud": "DenseScatter", L+"evidence.examined.turns": "sensitivity",
    L+"evidence.ledger.law_of": "scaling_law_of",
    # pages, tasks, verbs
    L+"looking.measuring.Subject": "PageInputs", L+"tasks.slurm.Attendant": "SlurmWorker", L+"tasks.driver.Here": "InProcessExecutor",
    L+"tasks.driver.Watcher": "ProgressListener", L+"tasks.task.Busy": "TaskLocked", L+"verbs.ask.ask": "infer",
    L+"report.look_page.in_words": "described_layer",
    # names that stood twice
    X+"header.told_models.Architecture": "FilteringArchitecture", X+"limits.architecture_models.Architecture": "LimitsArchitecture",
    G+"chunks.Asked": "StepInputs", Q+"asked.Asked": "ReadRequest", S+"seen.Batch": "PaddedBatch", G+"rnn.Cells": "RNNStepShape", Q+"cells.Cells": "TableCells",
    E+"states.Chain": "MarkovChainParams", X+"language.language_model.Chain": "LazyChainExample",
    A+"strategies.Crossing": "LevelCrossing", X+"limits.fig2.Crossing": "ConvergenceInterval",
    K+"phases.Entry": "CompiledFunction", L+"benchmark.entries.Entry": "BenchmarkEntry", L+"evidence.ledger.Entry": "LedgerRow",
    I+"monte_carlo.Estimate": "MonteCarloEstimate", L+"evidence.effects.Estimate": "EstimateWithError", R+"dry_run.Estimate": "ResourceEstimate",
    O+"multitask_exact.Exact": "ExactBlockValues", L+"report.folder.Experiment": "ExperimentFolder", N+"families.Family": "TransformersMapping",
    R+"fitting.Fit": "FitResult", A+"geometry.Fit": "AffineFit", O+"multitask_attention.Heads": "AttentionHeads", G+"causal_attention.Heads": "HeadBuffers",
    X+"multitask.heads.Heads": "HeadCountExperiment", E+"few_states.Law": "ChainParams", L+"evidence.budget_laws.Law": "ScalingLaw",
    O+"multitask_layout.Layout": "ResidualLayout", L+"looking.looking.Look": "ModelPage", L+"report.series_look.Look": "SeriesStyle",
    E+"number_evidence.Numbers": "VectorEmissions", X+"multitask.trained_observability.Observability": "ObservabilityExperiment",
    L+"experiments.planning.Plan": "ExperimentPlan", G+"layout.Plan": "ChunkPlan", L+"sweeps.grid.Point": "GridPoint",
    L+"evidence.budget_laws.Law.Point": "BudgetPoint", I+"gibbs.Prior": "DirichletPrior", Q+"rule.Reading": "ReadOptions",
    O+"regression.Samples": "RegressionSamples", L+"benchmark.scoring.Samples": "ScoredSamples", E+"by_table.Seen": "TableLikelihoodProcess",
    S+"seen.Seen": "EncodedObservations", I+"loop_inputs.Sequences": "PackedSequences", L+"study.conduct.Study": "StudyResult",
    E+"few_states.Sums": "SufficientStatistics", K+"products.Sums": "TileSum", M+"linear_attention.Sums": "LinearAttentionState",
    "hmmscope.reprs.Table": "ResultTable", L+"report.folder.Table": "StoredTable", L+"benchmark.tasks.Task": "BenchmarkTask",
    L+"tasks.task.Watch": "StallTimer", T+"watch.Watch": "ProcessMonitor", A+"strategy_weights.Weights": "StrategyWeights", I+"compiled.Weights": "ScaledBeliefs",
    N+"any_module._Found": "_TracedCalls", N+"imported._Found": "_TensorsByName", N+"any_module._Place": "_StreamLocation", X+"beliefs.mechanisms._Place": "_AxisLabel",
    E+"expectation._Search": "_EMSettings", I+"baum_welch._Search": "_RestartSearch", A+"belief_interventions._Task": "_InterventionData", A+"mechanisms._Task": "_AblationData",
    L+"verbs.options.Executed": "ExecutionOptions", L+"verbs.options.Changing": "OverrideOptions", L+"verbs.options.Reading": "SequenceInputOptions",
    L+"verbs.oracle.Wanted": "SequenceQuestions", L+"verbs.options.Ask": "InferOptions",
} | {f"{L}verbs.options.{v}": v+"Options" for v in "Show Run Train Sweep Sample Fit Study Analyse Claims Report Look Benchmark Check".split()}
MEMBERS = {  # methods, properties and fields: "class.member"
    # processes
    P+"process.Process.answered": "capabilities", P+"process.Process.lacks": "missing_capability_error", P+"process.Process.require": "require_capability",
    P+"process.Process.likeliest_path": "viterbi", P+"process.Process.draw_paths": "sample_posterior_paths", P+"process.Process.remember": "fixed_memory_predictions",
    P+"process.Process.tell": "encode_header", P+"process.Process.told": "decode_header", P+"process.Process.telling": "header_format",
    P+"process.Process.a_few": "subsample_components", P+"process.Process.pool_of": "select_components", P+"process.Process.as_read": "standardize",
    P+"process.Process.brings_sampler": "has_custom_sampler", P+"process.Process.driving": "driving_matrices",
    P+"hmm.HMM.started": "with_initial", P+"labelled.LabelledHMM.started": "with_initial", P+"laws.Law.started": "with_initial",
    E+"emitting.EmittingHMM.narrowest": "variance_floor_hits", P+"process.Process.why_not": "no_optimum_reason", C+"judged.Target.why_not": "no_optimum_reason",
    P+"process.Process.instead": "suggestion", P+"process.Process.in_words": "describe", P+"vector_process.VectorProcess.num_laws": "num_mixture_components",
    C+"density_heads.DensityHead.num_laws": "num_mixture_components",
    P+"process.Process.law": "params", P+"process.Process.law_digest": "params_digest", P+"process.Process.law_on": "params_on", P+"process.Process.by_law": "uses_hmm_inference",

    P+"laws.Law.moves": "transitions", P+"laws.Law.move": "transition", P+"laws.Law.ahead": "predictive", P+"laws.Law.ahead_in": "predictive_in",
    P+"answers.Observed.laws": "probs",
    P+"hmm.HMM.initial_S": "initial", P+"hmm.HMM.transition_SS": "transition", P+"hmm.HMM.emission_SV": "emission",
    P+"labelled.LabelledHMM.initial_S": "initial", P+"labelled.LabelledHMM.labelled_VSS": "labelled",
    P+"generalised.GeneralisedHMM.initial_S": "initial", P+"generalised.GeneralisedHMM.labelled_VSS": "labelled",
    P+"linear_gaussian.LinearGaussian.initial_S": "initial", P+"linear_gaussian.LinearGaussian.transition_SS": "transition", P+"linear_gaussian.LinearGaussian.output_YS": "output",
    P+"linear_gaussian.LinearGaussian.state_noise_SS": "state_noise", P+"linear_gaussian.LinearGaussian.output_noise_YY": "output_noise",
    P+"kalman.LinearSystem.initial_S": "initial", P+"kalman.LinearSystem.transition_SS": "transition", P+"kalman.LinearSystem.output_YS": "output",
    P+"kalman.LinearSystem.state_noise_SS": "state_noise", P+"kalman.LinearSystem.output_noise_YY": "output_noise",
    P+"process.Process.weights_M": "component_weights", P+"matrix_product.MatrixProduct.matrices_VDD": "matrices",
    E+"states.Chain.initial_S": "initial", E+"states.Chain.transition_SS": "transition",
    # datasets
    C+"layouts.Layout.num_columns": "context_length", C+"layouts.Layout.columns": "token_positions", C+"layouts.Layout.num_tokens": "vocab_size",
    C+"layouts.Layout.is_led": "has_prefix", C+"layouts.Layout.predicted": "predicted_observations", C+"layouts.Layout.starts": "reset_mask",
    C+"corpus.Corpus.num_tokens": "vocab_size", C+"judged.Target.columns": "token_positions", C+"judged.Target.columns_on": "token_positions_on",
    C+"judged.Target.floor": "lower_bound", C+"judged.Target.floor_terms": "lower_bound_terms", C+"judged.Target.asked": "evaluated", C+"batches.CorpusStream.corpus": "dataset",
    # inference, emissions
    E+"emitting.EmittingHMM.begun": "initialize", E+"emitting.EmittingHMM.improved": "m_step", E+"emitting.EmittingHMM.visits": "occupancy",
    I+"baum_welch.BaumWelchFit.apart": "restart_gap", I+"baum_welch.BaumWelchFit.agreed": "restarts_agree", E+"expectation.EmissionFit.apart": "restart_gap",
    E+"expectation.EmissionFit.agreed": "restarts_agree", I+"restarts.Restarts.apart": "restart_gap", I+"restarts.Restarts.agreed": "restarts_agree",
    E+"expectation.EmissionFit.floor": "min_variance", E+"expectation.EmissionFit.at_floor": "at_min_variance", E+"expectation._Search.floor": "min_variance",
    I+"smoothing.ExpectedCounts.first": "initial", I+"smoothing.ExpectedCounts.visits": "emissions", E+"states.StateCounts.first": "initial", E+"states.StateCounts.visits": "occupancy",
    I+"counts.Counts.first": "initial", I+"counts.Counts.visits": "emissions",
    I+"gibbs.Draws.swapped": "relabelled_fraction", R+"posterior.Posterior.swapped": "relabelled_fraction",
    E+"conjugate.NormalInverseWishart.strength": "prior_strength", E+"conjugate.GammaRates.strength": "prior_strength", E+"conjugate.DirichletRows.strength": "prior_strength",
    E+"few_states.Law.logarithms": "log_params", E+"few_states.Given.law": "params", E+"few_states.Given.likeliest": "viterbi",
    I+"climbing.Climb.beside": "side_by_side", I+"climbing.Climb.rules": "m_step", E+"few_states.Found.doubtful": "underflow_risk", I+"compiled.Filtered.doubtful": "underflow_risk",
    I+"compiled.Filtered.ahead": "predictive", E+"few_states.Sums.first": "initial", E+"few_states.Sums.moves": "transitions",
    I+"forward.ForwardStep.following": "next_probs", I+"mixture_posterior.ByComponent.shares": "weights", P+"answers.Prior.share": "weight",
    # engine
    G+"halves.Halves.qkv_ahead": "qkv_forward", G+"halves.Halves.qkv_back": "qkv_backward", G+"halves.Halves.out_ahead": "out_forward", G+"halves.Halves.out_back": "out_backward",
    G+"halves.Halves.hidden_ahead": "hidden_forward", G+"halves.Halves.hidden_back": "hidden_backward", G+"halves.Halves.back_ahead": "back_forward", G+"halves.Halves.back_back": "back_backward",
    G+"halves.CellHalves.recur_ahead": "recur_forward", G+"halves.CellHalves.recur_back": "recur_backward", G+"halves.CellHalves.feed_ahead": "feed_forward", G+"halves.CellHalves.feed_back": "feed_backward",
    # models
    M+"base.Ports.num_tokens": "vocab_size", M+"base.SequenceModel.num_tokens": "vocab_size", O+"constructed.Constructed.num_tokens": "vocab_size",
    M+"base.SequenceModel.ports": "model_io", M+"base.Tap.heard": "is_hooked", M+"listening.AttentionTap.heard_within": "is_hooked_within", M+"listening.AttentionTap.looked_at": "is_read",
    # training, runs
    T+"spec.TrainingSpec.milestone_steps": "log_checkpoint_steps",
    R+"pipeline.Run.beside_twins": "compare_with_untrained", R+"pipeline.Run.kept_steps": "checkpoint_steps", R+"pipeline.Run.corpus_of": "dataset_of", R+"pipeline.Run.corpus": "dataset",
    A+"belief_map.Trained.corpus": "dataset", A+"belief_map.Trained.kept_steps": "checkpoint_steps", T+"trainer.Lessons.corpus": "dataset", T+"trainer._Course.lessons": "schedule",
    R+"beginnings.Beginning.milestones": "num_log_checkpoints", R+"fitting.Fit.material": "data",
    # analysis
    A+"belief_map.BeliefMap.twin": "control", A+"belief_map.BeliefReader.corpus": "dataset", A+"geometry.ExactBeliefs.corpus": "dataset", A+"belief_map.BeliefReader.beside": "compared",
    A+"counting.Counted.counting": "ngrams", A+"counting.Counting.laws": "probs", A+"twins.Share.twins": "controls", A+"twins.Share.num_twins": "num_controls",
    A+"strategy_weights.Weights.alone": "single_kl", A+"mechanisms._Task._corpus": "_dataset", A+"screening.Screening.counting": "ngrams",
    # sequences
    Q+"data.SequenceData.beginnings": "prefixes", Q+"data.SequenceData.pieces": "chunks", Q+"data.SequenceData.reach": "steps_since_gap",
    Q+"data.SequenceData.reading": "read_options", Q+"encoding.Encoded.reading": "read_options", Q+"streaming.SequenceStream.reading": "read_options", Q+"asked.Asked.reading": "read_options",
    # evidence
    L+"evidence.claim.Seen.wanted": "required", L+"evidence.claim.Seen.drifts": "last_doubling_change", L+"evidence.claim.Seen.spent": "compute_used", L+"evidence.claim.Seen.drifts_by_name": "changes_by_name",
    L+"evidence.claim.Seen.redrawn": "resampled", L+"evidence.budget_laws.Law.redrawn": "resampled", L+"evidence.claim.Claim.judge": "evaluate",
    L+"evidence.claim.Claim.seen": "measured", L+"evidence.claim.Claim.judging": "measuring",
    
    
    L+"evidence.ledger.Stated.says": "claim_text", L+"evidence.ledger.Stated.reading": "operationalization",
    L+"evidence.power.Power.there": "power", L+"evidence.ledger.Entry.turns": "sensitivity",
    
    L+"evidence.verdicts.Gate.room": "headroom", L+"evidence.verdicts.Gate.settled": "converged_by_rule",
    L+"experiments.experiment.Experiment.networks": "run_columns", L+"experiments.experiment.Experiment.one_by_one": "measure_per_run", L+"experiments.experiment.Experiment.by_counting": "with_ngrams_only",
    L+"looking.measuring.Subject.twins": "controls", L+"report.explorer.View.looks": "styles",
    L+"tasks.executors.ExecutorOptions.silence": "heartbeat_timeout",
    # command line
    L+"verbs.options.Executed.silence": "heartbeat_timeout", L+"verbs.options.Run.trained": "pool", L+"verbs.options.Run.first": "only_first", L+"verbs.options.Run.kept": "reuse",
    L+"verbs.options.Train.begin": "warm_start", L+"verbs.options.Sweep.instances": "vary_process", L+"verbs.options.Ask.screen": "ngram_baselines", L+"verbs.options.Ask.steps": "observability",
    L+"verbs.options.Ask.time": "horizon", L+"verbs.options.Ask.blocks": "block_entropies", L+"verbs.options.Fit.check": "goodness_of_fit", L+"verbs.options.Claims.examine": "sensitivity",
    L+"verbs.options.Benchmark.board": "leaderboard", L+"verbs.options.Benchmark.keep": "copy_card", L+"verbs.options.Analyse.over_training": "over_checkpoints",
    L+"verbs.facts.FactOptions.screen": "ngram_baselines", L+"verbs.facts.FactOptions.steps": "observability", L+"verbs.facts.FactOptions.time": "horizon", L+"verbs.facts.FactOptions.blocks": "block_entropies",
}
PARAMS = {  # parameters: "function.parameter"
    P+"process.Process.require.asked": "capability", P+"process.Process.lacks.asked": "capability",
    I+"baum_welch.fit_baum_welch.heard": "callback", E+"expectation.fit_emissions.heard": "callback", I+"climbing.Climb.__call__.hear": "callback", I+"climbing.Climb.beside.hear": "callback",
    E+"expectation._Search.climb.hear": "callback", E+"expectation.fit_emissions.floor": "min_variance", E+"expectation._check_options.floor": "min_variance", E+"expectation._random.floor": "min_variance",
    E+"emitting.EmittingHMM.begun.floor": "min_variance", E+"emitting.EmittingHMM.improved.floor": "min_variance", E+"emitting.EmittingHMM.improved.visits": "occupancy",
    E+"channels.ChannelsHMM.conjugate.strength": "prior_strength", E+"gaussian.GaussianHMM.conjugate.strength": "prior_strength", E+"poisson.PoissonHMM.conjugate.strength": "prior_strength",
    Q+"data.SequenceData.__init__.like": "symbols_from", R+"config.configure.reading": "read_options", Q+"data.read_as.reading": "read_options", Q+"asked.Asked.__init__.reading": "read_options",
    A+"trained_counting._count_data.reading": "read_options", R+"config._read.reading": "read_options", R+"fitting._fit_numbers.reading": "read_options", R+"fitting._fit_stream.reading": "read_options",
    
    A+"counting.judge_counting.counting": "ngrams", A+"curves.evaluate.counting": "ngrams", A+"curves._predictors.counting": "ngrams", A+"header.header.counting": "ngrams",
    X+"multitask.pool_size._strategy_laws.counting": "ngrams", X+"multitask.predictors.prompt_score.counting": "ngrams",
    R+"training.train.begin": "warm_start", R+"training._folder.begin": "warm_start", A+"belief_map.belief_map.over_training": "over_checkpoints",
    M+"base.make_model.num_tokens": "vocab_size", O+"constructed.check_tokens.num_tokens": "vocab_size", O+"induction.induction_network.num_tokens": "vocab_size",
    "hmmscope.sequences.reading.read_array.own": "managed", "hmmscope.storage.disk.reading.own": "managed", "hmmscope.storage.disk.read_bytes.own": "managed", "hmmscope.storage.store.read_json.own": "managed",
    "hmmscope.storage.store.read_table.own": "managed", "hmmscope.storage.store.read_tensors.own": "managed",
    R+"number_files.read_number_file.like": "symbols_from", R+"number_files._array.like": "symbols_from", R+"number_files._vectors_of.like": "symbols_from",
}
PARAM_PATTERNS = [  # (functions, old, new): a parameter of the same meaning in many functions
    (r"hmmscope\.(inference|emissions|processes|analysis|corpora)\.(?!linear_programs|loop_inputs)[\w.]*", "starts", "reset_mask"),
    (r"hmmscope(_papers)?\.[\w.]*", "corpus", "dataset"),
    (r"hmmscope\.[\w.]*", "num_twins", "num_controls"),
    (r"hmmscope\.lab\.tasks\.[\w.]*", "silence", "heartbeat_timeout"),
    (r"hmmscope(_papers)?\.[\w.]*", "ports", "model_io"),
]
PARAM_SKIP = set()
BY_SPELLING = {"initial_S": "initial", "transition_SS": "transition", "emission_SV": "emission", "labelled_VSS": "labelled", "weights_M": "component_weights",
    "law": None}
STORED_FIELDS = {  # fields whose stored key keeps the old name
    T+"spec.TrainingSpec.num_grains", T+"spec.TrainingSpec.milestones",
}

STORED_MEMBERS = {  # fields whose stored key keeps the old name: renamed only with the mechanism of STORED.md
    T+"spec.TrainingSpec.num_grains": "accumulation_steps", T+"spec.TrainingSpec.milestones": "num_log_checkpoints",
    L+"evidence.verdicts.Above.matters": "smallest_effect", L+"evidence.verdicts.Below.matters": "smallest_effect",
    L+"evidence.records.Record.says": "claim_text", L+"evidence.records.Record.reading": "operationalization", L+"evidence.records.Record.there": "effect_if_true",
    L+"evidence.records.Record.none": "effect_if_false", L+"evidence.records.Record.numbers": "parameters", L+"evidence.finding.Finding.reading": "operationalization",
    L+"evidence.verdicts.Gate.seen": "measured",
}
STORED_PARAMS = {L+"evidence.claim.claim.says": "claim_text", L+"evidence.claim.claim.reading": "operationalization", L+"evidence.claim.claim.there": "effect_if_true",
    L+"evidence.claim.claim.none": "effect_if_false", L+"evidence.claim.claim.numbers": "parameters"}

MEMBERS |= STORED_MEMBERS
MEMBERS[C+"layouts.Layout.telling"] = "header_format"; STORED_MEMBERS[C+"layouts.Layout.telling"] = "header_format"
del MEMBERS[L+"evidence.verdicts.Gate.seen"], STORED_MEMBERS[L+"evidence.verdicts.Gate.seen"]
MEMBERS |= {L+"evidence.ledger.Stated.says": "claim_text", L+"evidence.ledger.Stated.reading": "operationalization"}
STORED_MEMBERS |= {L+"evidence.ledger.Stated.says": "claim_text", L+"evidence.ledger.Stated.reading": "operationalization"}
PARAMS |= STORED_PARAMS
REGISTERED = {  # registered names: new -> stored
    "process": {"told-hmms": "header-hmms", "told-cycles": "header-cycles", "told-sharp-hmms": "header-sharp-hmms", "told-slow-hmms": "header-slow-hmms",
        "told-sparse-hmms": "header-sparse-hmms", "fresh-hmms": "hmms-per-sample", "fresh-markov-chains": "markov-chains-per-sample",
        "fresh-aliased-cycles": "aliased-cycles-per-sample", "fresh-lazy-chains": "lazy-chains-per-sample", "given": "object"},
}
MEMBERS |= {R+"training._Begun.ports": "model_io", "analysis_cases.Held.num_tokens": "vocab_size", "bench.training._TorchRNN.num_tokens": "vocab_size"}
STORED_MEMBERS |= {M+"base.Ports.num_tokens": "vocab_size", C+"layouts.Header.telling": "header_format"}
BY_SPELLING = {"initial_S": "initial", "transition_SS": "transition", "emission_SV": "emission", "labelled_VSS": "labelled", "weights_M": "component_weights"}
# receivers of unknown type: (pattern of files, attribute) -> new; the first that fits decides, None: not renamed
FORCE = [
    (r"", "num_columns", "context_length"), (r"sequences/reading.py|tests/engine/", "columns", None), (r"", "columns", "token_positions"),
    (r"tests/interop/|interop/pomegranate", "starts", None), (r"", "starts", "reset_mask"), (r"", "predicted", "predicted_observations"), (r"", "ports", "model_io"), (r"", "num_tokens", "vocab_size"),
    (r"", "law", "params"), (r"test_worlds", "apart", None), (r"", "apart", "restart_gap"), (r"catalogue.py", "reading", "operationalization"),
    (r"sequences/data.py|given_sequences", "reading", "read_options"), (r"test_emission_families", "floor", "min_variance"), (r"test_edges_of_processes", "remember", "fixed_memory_predictions"),
    (r"tests/evidence/", "numbers", "parameters"),
]

FORCE_KW = [(r"told_measures", "counting", "ngrams"), (r"test_mutants", "numbers", "parameters"), (r"test_names_change_nothing", "reading", "operationalization"), (r"test_names_change_nothing", "says", "claim_text")]

PARAM_PATTERNS += [(r"hmmscope\.lab\.evidence\.power\.[\w.]*", "there", "effect_if_true"), (r"hmmscope\.lab\.evidence\.power\.[\w.]*", "none", "effect_if_false")]

SYMBOLS[L+"experiments.experiment.Measured"] = "MeasuredTables"
LOCALS = {"corpus": "dataset", "corpora": "datasets"}
PARAM_PATTERNS += [(r"doc_[\w.]*", "corpus", "dataset"), (r"doc_[\w.]*", "ports", "model_io")]
del STORED_MEMBERS[C+"layouts.Layout.telling"]

# keywords that a function with **options hands on
FORWARD = {"floor": "min_variance", "strength": "prior_strength", "like": "symbols_from", "heard": "callback", "num_twins": "num_controls", "starts": "reset_mask",
    "corpus": "dataset", "over_training": "over_checkpoints", "counting": "ngrams", "silence": "heartbeat_timeout", "num_grains": "accumulation_steps", "milestones": "num_log_checkpoints"}
# first words of messages
MESSAGES = {"starts": "reset_mask", "corpus": "dataset", "silence": "heartbeat_timeout", "blocks": "block_entropies", "over_training": "over_checkpoints", "num_twins": "num_controls", "like": "symbols_from",
    "floor": "min_variance", "strength": "prior_strength", "num_grains": "accumulation_steps", "milestones": "num_log_checkpoints", "begin": "warm_start"}
