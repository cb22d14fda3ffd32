BEGIN TRANSACTION;
CREATE TABLE alembic_version (
	version_num VARCHAR(32) NOT NULL, 
	CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);
INSERT INTO "alembic_version" VALUES('0001');
CREATE TABLE best (
	task_id INTEGER NOT NULL, 
	scope VARCHAR(16) NOT NULL, 
	scope_value TEXT NOT NULL, 
	config JSON NOT NULL, 
	config_digest VARCHAR(64) NOT NULL, 
	phase VARCHAR(16) NOT NULL, 
	median_s DOUBLE NOT NULL, 
	low_s DOUBLE NOT NULL, 
	high_s DOUBLE NOT NULL, 
	samples INTEGER NOT NULL, 
	updated_at DOUBLE NOT NULL, 
	CONSTRAINT pk_best PRIMARY KEY (task_id, scope, scope_value), 
	CONSTRAINT ck_best_scope CHECK (scope IN ('device', 'model', 'target')), 
	CONSTRAINT fk_best_task_id_task FOREIGN KEY(task_id) REFERENCES task (id)
);
INSERT INTO "best" VALUES(1,'device','1','{"x":2,"y":0}','1e0db2a6b104bebb','confirm',2.25000000000000026367e-03,2.24325000000000045197e-03,0.00225675,9,1.79518599292399144177e+09);
INSERT INTO "best" VALUES(1,'model','Model A','{"x":2,"y":0}','1e0db2a6b104bebb','confirm',2.25000000000000026367e-03,2.24325000000000045197e-03,0.00225675,9,1.79518599292898035045e+09);
INSERT INTO "best" VALUES(1,'target','','{"x":2,"y":0}','1e0db2a6b104bebb','confirm',2.25000000000000026367e-03,2.24325000000000045197e-03,0.00225675,9,1.79518599293099188809e+09);
INSERT INTO "best" VALUES(2,'device','2','{"x":4,"y":0}','835a7fb4b3b572b3','search',4.23611111111111150046e-03,4.22340277777777817896e-03,4.24881944444444395458e-03,9,1.79518599285700321201e+09);
INSERT INTO "best" VALUES(2,'model','Model B','{"x":4,"y":0}','835a7fb4b3b572b3','search',4.23611111111111150046e-03,4.22340277777777817896e-03,4.24881944444444395458e-03,9,1.79518599285998058318e+09);
INSERT INTO "best" VALUES(2,'target','','{"x":4,"y":0}','835a7fb4b3b572b3','search',4.23611111111111150046e-03,4.22340277777777817896e-03,4.24881944444444395458e-03,9,1.7951859928669810295e+09);
INSERT INTO "best" VALUES(3,'device','1','{}','44136fa355b3678a','search',3.24444444444444432887e-03,3.23471111111111112035e-03,3.25417777777777710371e-03,9,1.79518599288999438287e+09);
INSERT INTO "best" VALUES(3,'model','Model A','{}','44136fa355b3678a','search',3.24444444444444432887e-03,3.23471111111111112035e-03,3.25417777777777710371e-03,9,1.79518599289301180842e+09);
INSERT INTO "best" VALUES(3,'target','','{}','44136fa355b3678a','search',3.24444444444444432887e-03,3.23471111111111112035e-03,3.25417777777777710371e-03,9,1.79518599290101814273e+09);
CREATE TABLE device (
	id INTEGER NOT NULL, 
	identity VARCHAR(200) NOT NULL, 
	slot VARCHAR(200) NOT NULL, 
	model TEXT NOT NULL, 
	target_id INTEGER NOT NULL, 
	target JSON NOT NULL, 
	fingerprint JSON NOT NULL, 
	created_at DOUBLE NOT NULL, 
	seen_at DOUBLE NOT NULL, 
	CONSTRAINT pk_device PRIMARY KEY (id), 
	CONSTRAINT fk_device_target_id_target FOREIGN KEY(target_id) REFERENCES target (id), 
	CONSTRAINT uq_device_identity UNIQUE (identity)
);
INSERT INTO "device" VALUES(1,'host-a/cpu:0-1','cpu:0-1','Model A',1,'{"kind":"llvm","num-cores":2,"mcpu":"znver4","keys":["cpu"]}','{}',1.7951859927519946098e+09,1.7951859927519946098e+09);
INSERT INTO "device" VALUES(2,'host-b/cpu:0-1','cpu:0-1','Model B',1,'{"kind":"llvm","num-cores":2,"mcpu":"znver4","keys":["cpu"]}','{}',1.79518599275601816169e+09,1.79518599275601816169e+09);
CREATE TABLE environment (
	id INTEGER NOT NULL, 
	digest VARCHAR(64) NOT NULL, 
	body JSON NOT NULL, 
	created_at DOUBLE NOT NULL, 
	CONSTRAINT pk_environment PRIMARY KEY (id), 
	CONSTRAINT uq_environment_digest UNIQUE (digest)
);
INSERT INTO "environment" VALUES(1,'44136fa355b3678a1146ad16f7e8649e','{}',1.79518599278398013115e+09);
CREATE TABLE event (
	id INTEGER NOT NULL, 
	at DOUBLE NOT NULL, 
	kind VARCHAR(32) NOT NULL, 
	run_id INTEGER, 
	job_id INTEGER, 
	worker_id INTEGER, 
	detail JSON NOT NULL, 
	CONSTRAINT pk_event PRIMARY KEY (id), 
	CONSTRAINT fk_event_job_id_job FOREIGN KEY(job_id) REFERENCES job (id), 
	CONSTRAINT fk_event_run_id_run FOREIGN KEY(run_id) REFERENCES run (id), 
	CONSTRAINT fk_event_worker_id_worker FOREIGN KEY(worker_id) REFERENCES worker (id)
);
INSERT INTO "event" VALUES(1,1.79518599273300457005e+09,'created',1,NULL,NULL,'{"trials":12}');
INSERT INTO "event" VALUES(2,1.7951859927530004978e+09,'registered',NULL,NULL,1,'{"name":"worker","devices":["host-a/cpu:0-1"]}');
INSERT INTO "event" VALUES(3,1.79518599275601816169e+09,'registered',NULL,NULL,2,'{"name":"second","devices":["host-b/cpu:0-1"]}');
INSERT INTO "event" VALUES(4,1.79518599276000118255e+09,'enqueued',1,1,NULL,'{"phase":"search","entries":6}');
INSERT INTO "event" VALUES(5,1.79518599277500820162e+09,'leased',1,1,1,'{"lease":1,"device":"host-a/cpu:0-1"}');
INSERT INTO "event" VALUES(6,1.79518599282401204115e+09,'done',1,1,NULL,'{"reason":""}');
INSERT INTO "event" VALUES(7,1.79518599282900094982e+09,'enqueued',1,2,NULL,'{"phase":"search","entries":5}');
INSERT INTO "event" VALUES(8,1.79518599283998465544e+09,'leased',1,2,2,'{"lease":2,"device":"host-b/cpu:0-1"}');
INSERT INTO "event" VALUES(9,1.79518599286798691749e+09,'done',1,2,NULL,'{"reason":""}');
INSERT INTO "event" VALUES(10,1.79518599287498736381e+09,'enqueued',1,3,NULL,'{"phase":"search","entries":1}');
INSERT INTO "event" VALUES(11,1.79518599288198804856e+09,'leased',1,3,1,'{"lease":3,"device":"host-a/cpu:0-1"}');
INSERT INTO "event" VALUES(12,1.79518599290600728993e+09,'done',1,3,NULL,'{"reason":""}');
INSERT INTO "event" VALUES(13,1.79518599290801882748e+09,'enqueued',1,4,NULL,'{"phase":"confirm","entries":3}');
INSERT INTO "event" VALUES(14,1.79518599291401362415e+09,'leased',1,4,1,'{"lease":4,"device":"host-a/cpu:0-1"}');
INSERT INTO "event" VALUES(15,1.79518599293099188809e+09,'done',1,4,NULL,'{"reason":""}');
INSERT INTO "event" VALUES(16,1.79518599293300366403e+09,'enqueued',1,5,NULL,'{"phase":"search","entries":1}');
INSERT INTO "event" VALUES(17,1.7951859929389982224e+09,'enqueued',1,6,NULL,'{"phase":"search","entries":1}');
CREATE TABLE job (
	id INTEGER NOT NULL, 
	run_id INTEGER NOT NULL, 
	workload_id INTEGER NOT NULL, 
	target_id INTEGER NOT NULL, 
	policy_id INTEGER NOT NULL, 
	parent_id INTEGER, 
	phase VARCHAR(16) NOT NULL, 
	state VARCHAR(16) NOT NULL, 
	priority INTEGER NOT NULL, 
	attempts INTEGER NOT NULL, 
	fence BIGINT NOT NULL, 
	seed BIGINT NOT NULL, 
	needs TEXT NOT NULL, 
	reason TEXT NOT NULL, 
	available_at DOUBLE NOT NULL, 
	created_at DOUBLE NOT NULL, 
	finished_at DOUBLE, 
	CONSTRAINT pk_job PRIMARY KEY (id), 
	CONSTRAINT ck_job_phase CHECK (phase IN ('search', 'confirm', 'reference')), 
	CONSTRAINT ck_job_state CHECK (state IN ('queued', 'leased', 'done', 'quarantined', 'cancelled')), 
	CONSTRAINT fk_job_parent_id_job FOREIGN KEY(parent_id) REFERENCES job (id), 
	CONSTRAINT fk_job_policy_id_timing_policy FOREIGN KEY(policy_id) REFERENCES timing_policy (id), 
	CONSTRAINT fk_job_run_id_run FOREIGN KEY(run_id) REFERENCES run (id), 
	CONSTRAINT fk_job_target_id_target FOREIGN KEY(target_id) REFERENCES target (id), 
	CONSTRAINT fk_job_workload_id_workload FOREIGN KEY(workload_id) REFERENCES workload (id)
);
INSERT INTO "job" VALUES(1,1,1,1,1,NULL,'search','done',10,0,1,1,'{"op":"filter","versions":{"filter_tiled.cpu":"1"}}','',1.79518599276000118255e+09,1.79518599276000118255e+09,1.79518599282401204115e+09);
INSERT INTO "job" VALUES(2,1,1,1,1,NULL,'search','done',10,0,1,1,'{"op":"filter","versions":{"filter_plain.cpu":"1"}}','',1.79518599282900094982e+09,1.79518599282900094982e+09,1.7951859928669810295e+09);
INSERT INTO "job" VALUES(3,1,1,1,1,NULL,'search','done',10,0,1,1,'{"op":"filter","versions":{"filter_vendor.cpu":"1"}}','',1.79518599286899280548e+09,1.79518599286899280548e+09,1.79518599290600728993e+09);
INSERT INTO "job" VALUES(4,1,1,1,1,NULL,'confirm','done',10,0,1,1,'{"op":"filter","versions":{"filter_tiled.cpu":"1"}}','',1.79518599290701293949e+09,1.79518599290701293949e+09,1.79518599293099188809e+09);
INSERT INTO "job" VALUES(5,1,1,1,1,NULL,'search','quarantined',10,0,0,1,'{"op":"filter","versions":{"filter_plain.cpu":"1"}}','',1.79518599293199777608e+09,1.79518599293199777608e+09,NULL);
INSERT INTO "job" VALUES(6,1,1,1,1,NULL,'search','quarantined',10,0,0,1,'{"op":"filter","versions":{"filter_plain.cpu":"1"}}','',1.7951859929389982224e+09,1.7951859929389982224e+09,NULL);
CREATE TABLE job_entry (
	id INTEGER NOT NULL, 
	job_id INTEGER NOT NULL, 
	entry INTEGER NOT NULL, 
	task_id INTEGER NOT NULL, 
	config JSON NOT NULL, 
	config_digest VARCHAR(64) NOT NULL, 
	best_s DOUBLE, 
	state VARCHAR(16) NOT NULL, 
	CONSTRAINT pk_job_entry PRIMARY KEY (id), 
	CONSTRAINT ck_job_entry_state CHECK (state IN ('pending', 'done')), 
	CONSTRAINT fk_job_entry_job_id_job FOREIGN KEY(job_id) REFERENCES job (id), 
	CONSTRAINT fk_job_entry_task_id_task FOREIGN KEY(task_id) REFERENCES task (id), 
	CONSTRAINT uq_job_entry_job_id_entry UNIQUE (job_id, entry)
);
INSERT INTO "job_entry" VALUES(1,1,0,1,'{"x":0,"y":0}','cc978be5ab093d2b',NULL,'done');
INSERT INTO "job_entry" VALUES(2,1,1,1,'{"x":1,"y":0}','a80c49b28bf855a8',NULL,'done');
INSERT INTO "job_entry" VALUES(3,1,2,1,'{"x":2,"y":0}','1e0db2a6b104bebb',NULL,'done');
INSERT INTO "job_entry" VALUES(4,1,3,1,'{"x":3,"y":0}','2d0f0569552143db',NULL,'done');
INSERT INTO "job_entry" VALUES(5,1,4,1,'{"x":4,"y":0}','835a7fb4b3b572b3',NULL,'done');
INSERT INTO "job_entry" VALUES(6,1,5,1,'{"x":5,"y":0}','e53b9014483c32b6',NULL,'done');
INSERT INTO "job_entry" VALUES(7,2,0,2,'{"x":0,"y":0}','cc978be5ab093d2b',NULL,'done');
INSERT INTO "job_entry" VALUES(8,2,1,2,'{"x":1,"y":0}','a80c49b28bf855a8',NULL,'done');
INSERT INTO "job_entry" VALUES(9,2,2,2,'{"x":2,"y":0}','1e0db2a6b104bebb',NULL,'done');
INSERT INTO "job_entry" VALUES(10,2,3,2,'{"x":3,"y":0}','2d0f0569552143db',NULL,'done');
INSERT INTO "job_entry" VALUES(11,2,4,2,'{"x":4,"y":0}','835a7fb4b3b572b3',NULL,'done');
INSERT INTO "job_entry" VALUES(12,3,0,3,'{}','44136fa355b3678a',NULL,'done');
INSERT INTO "job_entry" VALUES(13,4,0,1,'{"x":0,"y":0}','cc978be5ab093d2b',NULL,'done');
INSERT INTO "job_entry" VALUES(14,4,1,1,'{"x":1,"y":0}','a80c49b28bf855a8',NULL,'done');
INSERT INTO "job_entry" VALUES(15,4,2,1,'{"x":2,"y":0}','1e0db2a6b104bebb',NULL,'done');
INSERT INTO "job_entry" VALUES(16,5,0,2,'{"x":0,"y":0}','cc978be5ab093d2b',NULL,'done');
INSERT INTO "job_entry" VALUES(17,6,0,2,'{"x":0,"y":0}','cc978be5ab093d2b',NULL,'done');
CREATE TABLE lease (
	id INTEGER NOT NULL, 
	job_id INTEGER NOT NULL, 
	worker_id INTEGER NOT NULL, 
	device_id INTEGER NOT NULL, 
	token BIGINT NOT NULL, 
	timing BOOLEAN NOT NULL, 
	created_at DOUBLE NOT NULL, 
	expires_at DOUBLE NOT NULL, 
	ended_at DOUBLE, 
	end_reason VARCHAR(32), 
	CONSTRAINT pk_lease PRIMARY KEY (id), 
	CONSTRAINT fk_lease_device_id_device FOREIGN KEY(device_id) REFERENCES device (id), 
	CONSTRAINT fk_lease_job_id_job FOREIGN KEY(job_id) REFERENCES job (id), 
	CONSTRAINT fk_lease_worker_id_worker FOREIGN KEY(worker_id) REFERENCES worker (id)
);
INSERT INTO "lease" VALUES(1,1,1,1,1,0,1.79518599277500820162e+09,1.79518605278301453592e+09,1.79518599282300615315e+09,'done');
INSERT INTO "lease" VALUES(2,2,2,2,1,0,1.79518599283998465544e+09,1.79518605284601950652e+09,1.7951859928669810295e+09,'done');
INSERT INTO "lease" VALUES(3,3,1,1,1,0,1.79518599288198804856e+09,1.79518605288299369811e+09,1.79518599290600728993e+09,'done');
INSERT INTO "lease" VALUES(4,4,1,1,1,0,1.79518599291401362415e+09,1.79518605291598510741e+09,1.79518599293099188809e+09,'done');
CREATE TABLE record (
	id INTEGER NOT NULL, 
	run_id INTEGER NOT NULL, 
	task_id INTEGER NOT NULL, 
	job_id INTEGER NOT NULL, 
	entry INTEGER NOT NULL, 
	lease_id INTEGER, 
	worker_id INTEGER, 
	device_id INTEGER, 
	environment_id INTEGER, 
	policy_id INTEGER NOT NULL, 
	phase VARCHAR(16) NOT NULL, 
	session VARCHAR(200) NOT NULL, 
	seed BIGINT NOT NULL, 
	config JSON NOT NULL, 
	config_digest VARCHAR(64) NOT NULL, 
	error VARCHAR(32), 
	message TEXT NOT NULL, 
	samples_s JSON NOT NULL, 
	median_s DOUBLE, 
	mean_s DOUBLE, 
	prepare_s DOUBLE, 
	build_s DOUBLE NOT NULL, 
	check_s DOUBLE NOT NULL, 
	run_s DOUBLE NOT NULL, 
	code_digest VARCHAR(128) NOT NULL, 
	measured_at DOUBLE NOT NULL, 
	recorded_at DOUBLE NOT NULL, 
	CONSTRAINT pk_record PRIMARY KEY (id), 
	CONSTRAINT ck_record_error CHECK (error IN ('invalid', 'instantiation', 'compile', 'runtime', 'crash', 'oom', 'wrong_answer', 'build_timeout', 'run_timeout', 'lost', 'cancelled') OR error IS NULL), 
	CONSTRAINT ck_record_phase CHECK (phase IN ('search', 'confirm', 'reference')), 
	CONSTRAINT ck_record_cost CHECK ((error IS NULL) = (median_s IS NOT NULL)), 
	CONSTRAINT fk_record_device_id_device FOREIGN KEY(device_id) REFERENCES device (id), 
	CONSTRAINT fk_record_environment_id_environment FOREIGN KEY(environment_id) REFERENCES environment (id), 
	CONSTRAINT fk_record_job_id_job FOREIGN KEY(job_id) REFERENCES job (id), 
	CONSTRAINT fk_record_lease_id_lease FOREIGN KEY(lease_id) REFERENCES lease (id), 
	CONSTRAINT fk_record_policy_id_timing_policy FOREIGN KEY(policy_id) REFERENCES timing_policy (id), 
	CONSTRAINT fk_record_run_id_run FOREIGN KEY(run_id) REFERENCES run (id), 
	CONSTRAINT fk_record_task_id_task FOREIGN KEY(task_id) REFERENCES task (id), 
	CONSTRAINT fk_record_worker_id_worker FOREIGN KEY(worker_id) REFERENCES worker (id), 
	CONSTRAINT uq_record_job_id_entry UNIQUE (job_id, entry)
);
INSERT INTO "record" VALUES(1,1,1,1,0,1,1,1,1,1,'search','s1',1,'{"x":0,"y":0}','cc978be5ab093d2b','compile','it did not work','[]',NULL,NULL,NULL,0.0,0.0,0.0,'',1.79518599279001498224e+09,1.79518599279001498224e+09);
INSERT INTO "record" VALUES(2,1,1,1,1,1,1,1,1,1,'search','s1',1,'{"x":1,"y":0}','a80c49b28bf855a8',NULL,'','[0.0026006666666666674,0.0026032777777777786,0.0026058888888888894,0.0026085000000000006,0.002611111111111112,0.0026137222222222226,0.0026163333333333342,0.002618944444444445,0.0026215555555555562]',2.61111111111111179189e-03,2.61111111111111179189e-03,NULL,0.0,0.0,2.35000000000000069944e-02,'',1.0,1.79518599279098057747e+09);
INSERT INTO "record" VALUES(3,1,1,1,2,1,1,1,1,1,'search','s1',1,'{"x":2,"y":0}','1e0db2a6b104bebb',NULL,'','[0.0022410000000000004,0.0022432500000000005,0.0022455,0.00224775,0.0022500000000000003,0.00225225,0.0022545000000000004,0.00225675,0.002259]',2.25000000000000026367e-03,2.25000000000000026367e-03,NULL,0.0,0.0,0.02025,'',1.0,1.79518599279198646546e+09);
INSERT INTO "record" VALUES(4,1,1,1,3,1,1,1,1,1,'search','s1',1,'{"x":3,"y":0}','2d0f0569552143db',NULL,'','[0.0019366666666666668,0.0019386111111111112,0.0019405555555555556,0.0019425000000000002,0.0019444444444444446,0.0019463888888888888,0.0019483333333333336,0.0019502777777777778,0.0019522222222222224]',1.94444444444444460538e-03,1.94444444444444460538e-03,NULL,0.0,0.0,0.0175,'',1.0,1.79518599279198646546e+09);
INSERT INTO "record" VALUES(5,1,1,1,4,1,1,1,1,1,'search','s1',1,'{"x":4,"y":0}','835a7fb4b3b572b3',NULL,'','[0.0016876666666666665,0.001689361111111111,0.0016910555555555555,0.00169275,0.0016944444444444444,0.0016961388888888887,0.0016978333333333333,0.0016995277777777775,0.0017012222222222222]',1.69444444444444438334e-03,1.6944444444444441665e-03,NULL,0.0,0.0,1.52499999999999979322e-02,'',1.0,1.79518599279299235346e+09);
INSERT INTO "record" VALUES(6,1,1,1,5,1,1,1,1,1,'search','s1',1,'{"x":5,"y":0}','e53b9014483c32b6',NULL,'','[0.001494,0.0014955,0.001497,0.0014985,0.0015,0.0015014999999999998,0.001503,0.0015044999999999998,0.001506]',0.0015,1.49999999999999981438e-03,NULL,0.0,0.0,1.34999999999999981126e-02,'',1.0,1.79518599279600977892e+09);
INSERT INTO "record" VALUES(7,1,2,2,0,2,2,2,1,1,'search','s2',1,'{"x":0,"y":0}','cc978be5ab093d2b','wrong_answer','it did not work','[]',NULL,NULL,NULL,0.0,0.0,0.0,'',1.79518599284698510167e+09,1.79518599284698510167e+09);
INSERT INTO "record" VALUES(8,1,2,2,1,2,2,2,1,1,'search','s2',1,'{"x":1,"y":0}','a80c49b28bf855a8',NULL,'','[0.006501666666666668,0.006508194444444446,0.006514722222222224,0.006521250000000001,0.006527777777777779,0.006534305555555556,0.006540833333333334,0.0065473611111111114,0.00655388888888889]',6.52777777777777904605e-03,6.52777777777777904605e-03,NULL,0.0,0.0,5.87500000000000105471e-02,'',1.0,1.79518599284799098975e+09);
INSERT INTO "record" VALUES(9,1,2,2,2,2,2,2,1,1,'search','s2',1,'{"x":2,"y":0}','1e0db2a6b104bebb',NULL,'','[0.0056025,0.005608124999999999,0.00561375,0.005619374999999999,0.005625,0.005630624999999999,0.00563625,0.005641874999999999,0.0056475]',0.005625,0.005625,NULL,0.0,0.0,5.06249999999999963917e-02,'',1.0,1.79518599284799098975e+09);
INSERT INTO "record" VALUES(10,1,2,2,3,2,2,2,1,1,'search','s2',1,'{"x":3,"y":0}','2d0f0569552143db',NULL,'','[0.004841666666666668,0.004846527777777779,0.0048513888888888895,0.004856250000000001,0.004861111111111112,0.004865972222222223,0.004870833333333335,0.004875694444444445,0.004880555555555556]',4.86111111111111205557e-03,4.8611111111111111882e-03,NULL,0.0,0.0,4.37500000000000041633e-02,'',1.0,1.79518599284799098975e+09);
INSERT INTO "record" VALUES(11,1,2,2,4,2,2,2,1,1,'search','s2',1,'{"x":4,"y":0}','835a7fb4b3b572b3',NULL,'','[0.004219166666666667,0.004223402777777778,0.004227638888888889,0.004231875,0.0042361111111111115,0.004240347222222222,0.004244583333333334,0.004248819444444444,0.004253055555555556]',4.23611111111111150046e-03,4.23611111111111063309e-03,NULL,0.0,0.0,0.038125,'',1.0,1.7951859928489968777e+09);
INSERT INTO "record" VALUES(12,1,3,3,0,3,1,1,1,1,'search','s3',1,'{}','44136fa355b3678a',NULL,'','[0.0032314666666666664,0.003234711111111111,0.0032379555555555554,0.0032412,0.0032444444444444443,0.0032476888888888886,0.0032509333333333333,0.003254177777777777,0.0032574222222222222]',3.24444444444444432887e-03,3.24444444444444432887e-03,NULL,0.0,0.0,0.0292,'',1.0,1.79518599288399958611e+09);
INSERT INTO "record" VALUES(13,1,1,4,0,4,1,1,1,1,'confirm','s4',1,'{"x":0,"y":0}','cc978be5ab093d2b',NULL,'','[0.0030156666666666665,0.0030186944444444445,0.003021722222222222,0.00302475,0.0030277777777777777,0.0030308055555555552,0.0030338333333333333,0.003036861111111111,0.003039888888888889]',3.02777777777777767215e-03,3.02777777777777723847e-03,NULL,0.0,0.0,2.72499999999999964472e-02,'',1.0,1.79518599291699075702e+09);
INSERT INTO "record" VALUES(14,1,1,4,1,4,1,1,1,1,'confirm','s4',1,'{"x":1,"y":0}','a80c49b28bf855a8',NULL,'','[0.0026006666666666674,0.0026032777777777786,0.0026058888888888894,0.0026085000000000006,0.002611111111111112,0.0026137222222222226,0.0026163333333333342,0.002618944444444445,0.0026215555555555562]',2.61111111111111179189e-03,2.61111111111111179189e-03,NULL,0.0,0.0,2.35000000000000069944e-02,'',1.0,1795185992.92202);
INSERT INTO "record" VALUES(15,1,1,4,2,4,1,1,1,1,'confirm','s4',1,'{"x":2,"y":0}','1e0db2a6b104bebb',NULL,'','[0.0022410000000000004,0.0022432500000000005,0.0022455,0.00224775,0.0022500000000000003,0.00225225,0.0022545000000000004,0.00225675,0.002259]',2.25000000000000026367e-03,2.25000000000000026367e-03,NULL,0.0,0.0,0.02025,'',1.0,1.79518599292298555378e+09);
INSERT INTO "record" VALUES(16,1,2,5,0,NULL,NULL,NULL,NULL,1,'search','',1,'{"x":0,"y":0}','cc978be5ab093d2b','lost','its workers died','[]',NULL,NULL,NULL,0.0,0.0,0.0,'',1700000000.0,1.79518599294499301907e+09);
INSERT INTO "record" VALUES(17,1,2,6,0,NULL,NULL,NULL,NULL,1,'search','',1,'{"x":0,"y":0}','cc978be5ab093d2b','lost','its workers died','[]',NULL,NULL,NULL,0.0,0.0,0.0,'',1700000000.0,1.79518599294599890707e+09);
CREATE TABLE run (
	id INTEGER NOT NULL, 
	state VARCHAR(16) NOT NULL, 
	target_id INTEGER NOT NULL, 
	digest VARCHAR(64) NOT NULL, 
	request JSON NOT NULL, 
	message TEXT NOT NULL, 
	complete BOOLEAN NOT NULL, 
	created_at DOUBLE NOT NULL, 
	finished_at DOUBLE, 
	CONSTRAINT pk_run PRIMARY KEY (id), 
	CONSTRAINT ck_run_state CHECK (state IN ('running', 'confirming', 'done', 'failed', 'cancelled')), 
	CONSTRAINT fk_run_target_id_target FOREIGN KEY(target_id) REFERENCES target (id)
);
INSERT INTO "run" VALUES(1,'running',1,'796fbdff61354a463b97ff53c39d3e1d','{"workloads":[{"workload":{"op":"filter","inputs":[{"name":"data","type":"float32[64,64]"}]},"weight":1.0,"candidates":[{"implementation":"filter_tiled.cpu","version":"1.a06f3f32","plevel":5,"space":{"knobs":[{"name":"x","values":[0,1,2,3,4,5,6,7,8,9,10,11],"kind":"schedule"},{"name":"y","values":[0,1,2,3,4,5,6,7,8,9,10,11],"kind":"schedule"}],"fallback":{"x":0,"y":0}}},{"implementation":"filter_plain.cpu","version":"1.a06f3f32","plevel":10,"space":{"knobs":[{"name":"x","values":[0,1,2,3,4,5,6,7,8,9,10,11],"kind":"schedule"},{"name":"y","values":[0,1,2,3,4,5,6,7,8,9,10,11],"kind":"schedule"}],"fallback":{"x":0,"y":0}}},{"implementation":"filter_vendor.cpu","version":"1.0","plevel":15,"library":"vendor"}]}],"target":{"kind":"llvm","num-cores":2,"mcpu":"znver4","keys":["cpu"]},"trials":12,"timeout_s":null,"seed":0,"tuner":"model","implementations":null,"search_policy":{"warmup_s":0.002,"min_repeat_s":0.002,"min_repeats":6,"max_repeats":60,"spread":0.02,"budget_s":0.06,"give_up_ratio":2.0,"build_timeout_s":30.0,"run_timeout_s":30.0},"confirm_policy":{"warmup_s":0.002,"min_repeat_s":0.002,"min_repeats":20,"max_repeats":200,"spread":0.01,"budget_s":0.6,"give_up_ratio":null,"build_timeout_s":30.0,"run_timeout_s":30.0},"force":false}','',0,1.79518599272499823574e+09,NULL);
CREATE TABLE run_task (
	id INTEGER NOT NULL, 
	run_id INTEGER NOT NULL, 
	task_id INTEGER NOT NULL, 
	weight DOUBLE NOT NULL, 
	state VARCHAR(16) NOT NULL, 
	message TEXT NOT NULL, 
	CONSTRAINT pk_run_task PRIMARY KEY (id), 
	CONSTRAINT ck_run_task_state CHECK (state IN ('active', 'dropped', 'exhausted')), 
	CONSTRAINT fk_run_task_run_id_run FOREIGN KEY(run_id) REFERENCES run (id), 
	CONSTRAINT fk_run_task_task_id_task FOREIGN KEY(task_id) REFERENCES task (id), 
	CONSTRAINT uq_run_task_run_id_task_id UNIQUE (run_id, task_id)
);
INSERT INTO "run_task" VALUES(1,1,1,1.0,'active','');
INSERT INTO "run_task" VALUES(2,1,2,1.0,'active','');
INSERT INTO "run_task" VALUES(3,1,3,1.0,'active','');
CREATE TABLE target (
	id INTEGER NOT NULL, 
	"key" TEXT NOT NULL, 
	keys JSON NOT NULL, 
	body JSON NOT NULL, 
	CONSTRAINT pk_target PRIMARY KEY (id), 
	CONSTRAINT uq_target_key UNIQUE ("key")
);
INSERT INTO "target" VALUES(1,'llvm/znver4/threads=2','["cpu"]','{"kind":"llvm","num-cores":2,"mcpu":"znver4","keys":["cpu"]}');
CREATE TABLE task (
	id INTEGER NOT NULL, 
	workload_id INTEGER NOT NULL, 
	target_id INTEGER NOT NULL, 
	implementation VARCHAR(200) NOT NULL, 
	version VARCHAR(200) NOT NULL, 
	plevel INTEGER NOT NULL, 
	library VARCHAR(200), 
	condition JSON, 
	space JSON, 
	space_size BIGINT, 
	created_at DOUBLE NOT NULL, 
	CONSTRAINT pk_task PRIMARY KEY (id), 
	CONSTRAINT fk_task_target_id_target FOREIGN KEY(target_id) REFERENCES target (id), 
	CONSTRAINT fk_task_workload_id_workload FOREIGN KEY(workload_id) REFERENCES workload (id), 
	CONSTRAINT uq_task_workload_id_target_id_implementation_version UNIQUE (workload_id, target_id, implementation, version)
);
INSERT INTO "task" VALUES(1,1,1,'filter_tiled.cpu','1.a06f3f32',5,NULL,NULL,'{"knobs":[{"name":"x","values":[0,1,2,3,4,5,6,7,8,9,10,11],"kind":"schedule"},{"name":"y","values":[0,1,2,3,4,5,6,7,8,9,10,11],"kind":"schedule"}],"fallback":{"x":0,"y":0}}',144,1.7951859927309930325e+09);
INSERT INTO "task" VALUES(2,1,1,'filter_plain.cpu','1.a06f3f32',10,NULL,NULL,'{"knobs":[{"name":"x","values":[0,1,2,3,4,5,6,7,8,9,10,11],"kind":"schedule"},{"name":"y","values":[0,1,2,3,4,5,6,7,8,9,10,11],"kind":"schedule"}],"fallback":{"x":0,"y":0}}',144,1.7951859927319989205e+09);
INSERT INTO "task" VALUES(3,1,1,'filter_vendor.cpu','1.0',15,'vendor',NULL,NULL,NULL,1.7951859927319989205e+09);
CREATE TABLE timing_policy (
	id INTEGER NOT NULL, 
	digest VARCHAR(64) NOT NULL, 
	body JSON NOT NULL, 
	CONSTRAINT pk_timing_policy PRIMARY KEY (id), 
	CONSTRAINT uq_timing_policy_digest UNIQUE (digest)
);
INSERT INTO "timing_policy" VALUES(1,'48198945c9e28feee7c52bda9a35f36d','{"warmup_s":0.002,"min_repeat_s":0.002,"min_repeats":6,"max_repeats":60,"spread":0.02,"budget_s":0.06,"give_up_ratio":2.0,"build_timeout_s":30.0,"run_timeout_s":30.0}');
CREATE TABLE worker (
	id INTEGER NOT NULL, 
	name VARCHAR(200) NOT NULL, 
	host TEXT NOT NULL, 
	pid BIGINT NOT NULL, 
	version TEXT NOT NULL, 
	operators JSON NOT NULL, 
	created_at DOUBLE NOT NULL, 
	seen_at DOUBLE NOT NULL, 
	ended_at DOUBLE, 
	CONSTRAINT pk_worker PRIMARY KEY (id)
);
INSERT INTO "worker" VALUES(1,'worker','host-a',1,'','{}',1.79518599275098896025e+09,1.79518599291598510746e+09,NULL);
INSERT INTO "worker" VALUES(2,'second','host-a',1,'','{}',1.79518599275601816169e+09,1.79518599284601950644e+09,NULL);
CREATE TABLE worker_device (
	worker_id INTEGER NOT NULL, 
	device_id INTEGER NOT NULL, 
	target_id INTEGER NOT NULL, 
	CONSTRAINT pk_worker_device PRIMARY KEY (worker_id, device_id), 
	CONSTRAINT fk_worker_device_device_id_device FOREIGN KEY(device_id) REFERENCES device (id), 
	CONSTRAINT fk_worker_device_target_id_target FOREIGN KEY(target_id) REFERENCES target (id), 
	CONSTRAINT fk_worker_device_worker_id_worker FOREIGN KEY(worker_id) REFERENCES worker (id)
);
INSERT INTO "worker_device" VALUES(1,1,1);
INSERT INTO "worker_device" VALUES(2,2,1);
CREATE TABLE workload (
	id INTEGER NOT NULL, 
	digest VARCHAR(64) NOT NULL, 
	"key" TEXT NOT NULL, 
	op VARCHAR(128) NOT NULL, 
	body JSON NOT NULL, 
	CONSTRAINT pk_workload PRIMARY KEY (id), 
	CONSTRAINT uq_workload_digest UNIQUE (digest)
);
INSERT INTO "workload" VALUES(1,'b2998bdec3409e39','filter(data=float32[64,64])','filter','{"op":"filter","inputs":[{"name":"data","type":"float32[64,64]"}]}');
CREATE INDEX ix_workload_op ON workload (op);
CREATE INDEX ix_run_digest ON run (digest);
CREATE INDEX ix_run_state ON run (state);
CREATE INDEX ix_job_queued ON job (target_id, priority, id) WHERE state = 'queued';
CREATE INDEX ix_job_run_id_state ON job (run_id, state);
CREATE INDEX ix_run_task_task_id ON run_task (task_id);
CREATE INDEX ix_worker_device_device_id ON worker_device (device_id);
CREATE INDEX ix_worker_device_target_id ON worker_device (target_id);
CREATE INDEX ix_event_job_id ON event (job_id);
CREATE INDEX ix_event_run_id_id ON event (run_id, id);
CREATE INDEX ix_job_entry_task_id ON job_entry (task_id);
CREATE INDEX ix_lease_job_id ON lease (job_id);
CREATE INDEX ix_lease_live_expires_at ON lease (expires_at) WHERE ended_at IS NULL;
CREATE INDEX ix_lease_worker_id ON lease (worker_id);
CREATE UNIQUE INDEX uq_lease_live_device ON lease (device_id, timing) WHERE ended_at IS NULL;
CREATE UNIQUE INDEX uq_lease_live_job ON lease (job_id) WHERE ended_at IS NULL;
CREATE INDEX ix_record_run_id_id ON record (run_id, id);
CREATE INDEX ix_record_task_id_phase_config_digest ON record (task_id, phase, config_digest);
COMMIT;
